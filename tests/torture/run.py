"""Records all torture programs by both back ends and verifies them: `python tests/torture/run.py`.

Says of each whether it behaves as it does by itself (or under plain QEMU), and whether what was
decoded is what ran. `--random N` adds N programs of random machine code, from number `--seed` on,
of `--pieces` pieces each; `--kill N` kills as many recorders at random moments. Exit code 1 if
anything is wrong.
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
        return int(Runner(Path(folder), arguments, backends).run() > 0)


class Runner:
    """Goes through all and counts what is wrong."""

    def __init__(self, folder: Path, wanted: argparse.Namespace, backends: list[str]) -> None:
        self.folder = folder
        self.wanted = wanted
        self.backends = backends
        self.wrong = 0
        self.done = 0

    def run(self) -> int:
        """All that is wanted; how much was wrong."""
        from torture.cases import cases, random_case

        every = cases()
        if self.wanted.names:
            every = [case for case in every if case.mode in self.wanted.names]
        elif self.wanted.random or self.wanted.kill:
            every = []
        for backend in self.backends:
            for case in every:
                self.one(case.argv, case.mode, backend)
            for seed in range(self.wanted.seed, self.wanted.seed + self.wanted.random):
                case = random_case(seed, self.wanted.pieces, known=backend == "qemu")
                self.one(case.argv, case.name, backend)
            self.kills(backend)
        print(f"{self.done} recordings, {self.wrong} wrong")
        return self.wrong

    def one(self, argv: list[str], name: str, backend: str) -> None:
        """One program by one back end."""
        from torture.cases import BETTER_THAN_QEMU, ENDLESS, behaviour
        from torture.recorded import record

        folder = self.empty()
        plain = ["qemu-x86_64"] if backend == "qemu" and name not in BETTER_THAN_QEMU else []
        by_itself = behaviour(plain + argv, folder)
        if by_itself == ENDLESS:
            self.tell(name, backend, "", "does not end by itself: not recorded")
            return
        found = record(argv, backend, folder)
        same = found.behaviour == by_itself
        told = "" if same else f"behaves otherwise: {found.behaviour}, by itself {by_itself}"
        if not found.right:
            told = f"{told} {found.verdict.strip().splitlines()[-2:]}"
        self.tell(name, backend, told, found.said)

    def kills(self, backend: str) -> None:
        """Recorders that are killed: what they left is readable, and right as far as it goes."""
        from torture.cases import Case
        from torture.recorded import killed, right_as_far_as_it_goes

        chance = random.Random(self.wanted.seed)
        for number in range(self.wanted.kill):
            mode = chance.choice(["family", "many_threads", "exec_again", "forks_among_threads"])
            after = chance.uniform(0.2, 2.5)
            code, verdict = killed(Case("processes", (mode,)).argv, backend, self.empty(), after)
            told = "" if right_as_far_as_it_goes(code, verdict) else verdict.strip()
            self.tell(f"kill {number} {mode} after {after:.2f} s", backend, told, "")

    def tell(self, name: str, backend: str, wrong: str, said: str) -> None:
        """A line for what was tried."""
        self.done += 1
        self.wrong += bool(wrong)
        lines = f" (said: {said.strip()})" if said.strip() else ""
        print(f"{backend:6} {name:30} {'WRONG ' + wrong if wrong else 'right'}{lines}", flush=True)

    def empty(self) -> Path:
        """A folder with nothing in it."""
        folder = self.folder / "one"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder


if __name__ == "__main__":
    sys.exit(main())
