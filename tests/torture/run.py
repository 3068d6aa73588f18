"""Records all torture programs under both back ends and verifies them: `python
tests/torture/run.py`.

Prints whether each program behaves as it does alone (or under plain QEMU), and whether its
recording decodes as executed. `--random N` adds N programs of random machine code, from number
`--seed` on, of `--pieces` pieces each; `--kill N` kills N recorders at random moments. The exit
code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))


def main() -> int:
    from rtit.capture.qemu.installation import find_qemu

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="modes; all if none is given")
    parser.add_argument("--backend", choices=("ptrace", "qemu"))
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--kill", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pieces", type=int, default=20)
    arguments = parser.parse_args()
    found = find_qemu()
    backends = [arguments.backend] if arguments.backend else ["ptrace", "qemu"]
    if isinstance(found, str) and "qemu" in backends:
        print(f"not under QEMU: {found}")
        backends.remove("qemu")
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        return int(TortureRunner(Path(folder), arguments, backends).run() > 0)


class TortureRunner:
    """Runs the selected cases and counts failures."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, backends: list[str]) -> None:
        self.folder = folder
        self.arguments = arguments
        self.backends = backends
        self.failures = 0
        self.recordings = 0

    def run(self) -> int:
        """Run the selected cases; return the number of failures."""
        from torture.cases import all_cases, random_case

        selected = all_cases()
        if self.arguments.names:
            selected = [case for case in selected if case.mode in self.arguments.names]
        elif self.arguments.random or self.arguments.kill:
            selected = []
        for backend in self.backends:
            for case in selected:
                self.check_program(case.argv, case.mode, backend)
            for seed in range(self.arguments.seed, self.arguments.seed + self.arguments.random):
                case = random_case(seed, self.arguments.pieces, known=backend == "qemu")
                self.check_program(case.argv, case.name, backend)
            self.check_killed_recorders(backend)
        print(f"{self.recordings} recordings, {self.failures} wrong")
        return self.failures

    def check_program(self, argv: list[str], name: str, backend: str) -> None:
        """Record one program under one back end, and compare it with a run of its own."""
        from torture.cases import BETTER_THAN_QEMU, DOES_NOT_END, run_program
        from torture.recording import record_and_verify

        folder = self.empty_folder()
        plain = ["qemu-x86_64"] if backend == "qemu" and name not in BETTER_THAN_QEMU else []
        native = run_program(plain + argv, folder)
        if native == DOES_NOT_END:
            self.report(name, backend, "", "does not end by itself: not recorded")
            return
        found = record_and_verify(argv, backend, folder)
        same = found.behaviour == native
        problem = "" if same else f"behaves otherwise: {found.behaviour}, by itself {native}"
        if not found.is_correct:
            problem = f"{problem} {found.verdict.strip().splitlines()[-2:]}"
        self.report(name, backend, problem, found.messages)

    def check_killed_recorders(self, backend: str) -> None:
        """Kill recorders; what they have written must be readable, and a correct prefix."""
        from torture.cases import Case
        from torture.recording import is_correct_prefix, record_and_kill

        chance = random.Random(self.arguments.seed)
        for number in range(self.arguments.kill):
            mode = chance.choice(["family", "many_threads", "exec_again", "forks_among_threads"])
            after = chance.uniform(0.2, 2.5)
            code, verdict = record_and_kill(
                Case("processes", (mode,)).argv, backend, self.empty_folder(), after
            )
            problem = "" if is_correct_prefix(code, verdict) else verdict.strip()
            self.report(f"kill {number} {mode} after {after:.2f} s", backend, problem, "")

    def report(self, name: str, backend: str, problem_text: str, messages: str) -> None:
        """Print a line for one case."""
        self.recordings += 1
        self.failures += bool(problem_text)
        lines = f" (said: {messages.strip()})" if messages.strip() else ""
        print(
            f"{backend:6} {name:30} {'WRONG ' + problem_text if problem_text else 'right'}{lines}",
            flush=True,
        )

    def empty_folder(self) -> Path:
        """Return an empty folder."""
        folder = self.folder / "one"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder


if __name__ == "__main__":
    sys.exit(main())
