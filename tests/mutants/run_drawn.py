"""Mutates code under randomly drawn requirements, and prints which mutations no test notices.

python tests/mutants/run_drawn.py [--seed N...] [--count N]

The script draws a requirement, a line that its tests run, preferably one that few other drawn
requirements run, and a change of the line. The requirement's own tests run first, then, if they
pass, the other tests of the unit that need no recorded program. A mutation that no test notices
survives: exit code 1. The draw depends only on the seed, the requirement and the text of the
code, so that a change in one place does not affect others. `equivalent.txt` names mutations
that change nothing that the model promises.

A test notices a mutation if it fails, takes far more processor time, or no longer loads; all
tests must pass without the mutation. Any other result ends the run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path.insert(0, str(TESTS))

from mutants.mutation import Mutation, effects, mutations  # noqa: E402
from mutants.plugin import PACKAGE, PACKAGES, module_name, mutated_files  # noqa: E402
from mutants.results import EQUIVALENT, RUST, known_equivalents  # noqa: E402
from requirements.check import claimed_ids, requirements  # noqa: E402

SPARE_ROWS = 20
SECONDS = 900
"""Limit by the clock, for very slow machines; the limit of processor time usually comes first."""
FOLDERS = ("scenario", "packets", "registers", "unit", "processor", "capture", "cli")
USES_UNIT = re.compile(
    rf"\brtit\.({'|'.join(PACKAGES)}|scenario|options)\b|\bunit\.(?:world|execution)\b"
)
PASSED, FAILED, NOT_COLLECTED = 0, 1, 2


@dataclass(frozen=True)
class DrawnMutation:
    row: str
    mutation: Mutation
    files: tuple[str, ...]
    seconds: int
    """Limit of processor time for the requirement's own tests."""


@dataclass(frozen=True)
class OtherTests:
    """The tests of the unit that need no recorded program, the fastest files first."""

    files: tuple[str, ...]
    seconds: int


def stable_rank(*words: object) -> str:
    return hashlib.sha256("\0".join(map(str, words)).encode()).hexdigest()


def run_pytest(files: Iterable[str], **environment: str) -> int:
    """Run tests, and return how pytest ended."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutants.plugin", "-p",
               "no:cacheprovider", *files]  # fmt: skip
    env = {name: value for name, value in os.environ.items() if not name.startswith("RTIT_")}
    env |= {"PYTHONPATH": f"{TESTS}{os.pathsep}{PACKAGE}", **environment}
    done = subprocess.run(
        command, cwd=TESTS.parent, env=env, capture_output=True, timeout=SECONDS, check=False
    )
    text = (done.stdout + done.stderr).decode(errors="replace")
    if "while loading conftest" in text:
        return NOT_COLLECTED
    if done.returncode not in (PASSED, FAILED, NOT_COLLECTED, -signal.SIGXCPU):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{text[-2000:]}")
    return FAILED if done.returncode == -signal.SIGXCPU else done.returncode


def records_of_tests(files: Iterable[str], **environment: str) -> list[dict[str, Any]]:
    """Return the records of each test in files that all pass."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen"
        code = run_pytest(files, RTIT_SEEN=str(seen), **environment)
        if code != PASSED:
            raise RuntimeError(
                f"the tests do not pass without a mutation (pytest ended with {code})"
            )
        found: list[dict[str, Any]] = json.loads(seen.read_text())
    return found


def needs_no_program(file: str) -> bool:
    """Return whether a file, relative to the tests, belongs to those that need no recorded
    program.
    """
    return file.split("/", maxsplit=1)[0] in FOLDERS


def rows_in_order(seed: int) -> list[str]:
    tested = {
        row for row, locations in claimed_ids().items() if any(map(needs_no_program, locations))
    }
    rows = [
        row
        for row, facts in requirements().items()
        if row in tested and facts["side"] != "decoder" and facts["kind"] != "note"
    ]
    return sorted(rows, key=lambda row: stable_rank(seed, row))


def records_of_rows(rows: list[str]) -> list[dict[str, Any]]:
    """Return the records of each test of these rows."""
    locations = claimed_ids()
    files = {
        location.rsplit(":", 1)[0]
        for row in rows
        for location in locations[row]
        if needs_no_program(location)
    }
    return records_of_tests(
        [f"tests/{file}" for file in sorted(files)], RTIT_ROWS=" ".join(rows), RTIT_LINES="1"
    )


def draw_mutations(seed: int, count: int) -> list[DrawnMutation]:
    rows = rows_in_order(seed)[: count + SPARE_ROWS]
    seen = records_of_rows(rows)
    limit = time_limit(seen)
    known = effects(path.read_text() for path in mutated_files())
    by_file: dict[str, list[Mutation]] = {
        str(path): list(mutations(module_name(path), path.read_text(), known))
        for path in mutated_files()
    }
    equivalent = known_equivalents()
    names = {mutation.name for found in by_file.values() for mutation in found}
    names |= {name for name in equivalent if name.startswith(RUST)}
    if unknown := sorted(equivalent - names):
        raise RuntimeError(f"{EQUIVALENT.name} has mutations of code that is not there: {unknown}")
    counts_of_tests: Counter[tuple[str, int]] = Counter()
    ran: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        tests = [test for test in seen if row in test["rows"]]
        ran[row] = {
            (path, line)
            for test in tests
            for path, lines in test["lines"].items()
            for line in lines
        }
        counts_of_tests.update(ran[row])
    drawn: list[DrawnMutation] = []
    used: set[str] = set()
    for row in rows:
        candidates = [
            (counts_of_tests[path, mutation.line], stable_rank(seed, row, mutation.name), mutation)
            for path in {path for path, _ in ran[row]}
            for mutation in by_file[path]
            if (path, mutation.line) in ran[row]
            and mutation.name not in used
            and mutation.name not in equivalent
        ]
        if candidates and len(drawn) < count:
            mutation = min(candidates)[2]
            used.add(mutation.name)
            files = {test["file"] for test in seen if row in test["rows"]}
            drawn.append(DrawnMutation(row, mutation, tuple(sorted(files)), limit))
    return drawn


def time_limit(seen: list[dict[str, Any]]) -> int:
    """Return the limit of processor time for tests with these records, in seconds."""
    seconds: float = sum(test["seconds"] for test in seen)
    return 30 + round(3 * seconds)


def other_tests() -> OtherTests:
    paths = sorted(path for folder in FOLDERS for path in (TESTS / folder).rglob("test_*.py"))
    seen = records_of_tests(str(path) for path in paths if USES_UNIT.search(path.read_text()))
    seconds: Counter[str] = Counter()
    for test in seen:
        seconds[test["file"]] += test["seconds"]
    if missing := [each for each in FOLDERS if not any(f"/{each}/" in file for file in seconds)]:
        raise RuntimeError(f"no tests in {missing}")
    return OtherTests(tuple(sorted(seconds, key=lambda file: seconds[file])), time_limit(seen))


def find_noticer(drawn: DrawnMutation, other_tests: OtherTests) -> str:
    """Return what noticed: the row's own tests, other tests (or all, if they do not load),
    or no test.
    """
    mutant = json.dumps(asdict(drawn.mutation))
    code = run_pytest(
        drawn.files, RTIT_MUTANT=mutant, RTIT_ROWS=drawn.row, RTIT_SECONDS=str(drawn.seconds)
    )
    if code == PASSED:
        code = run_pytest(
            other_tests.files, RTIT_MUTANT=mutant, RTIT_SECONDS=str(other_tests.seconds)
        )
        return "no test" if code == PASSED else "other tests"
    return "other tests" if code == NOT_COLLECTED else "its own tests"


def has_survivors(seed: int, count: int, pool: Executor, other_tests: Future[OtherTests]) -> bool:
    """Draw and run mutations; return whether any survived, or too few could be drawn."""
    drawn = draw_mutations(seed, count)
    tests = other_tests.result()
    noticed: Counter[str] = Counter()
    for each, noticer in zip(
        drawn, pool.map(lambda it: find_noticer(it, tests), drawn), strict=True
    ):
        noticed[noticer] += 1
        print(f"{each.row:12} noticed by {noticer:14} {each.mutation.name}", flush=True)
    print(
        f"{len(drawn)} mutations under {len(drawn)} requirements (seed {seed}): "
        f"{noticed['its own tests']} noticed by the requirement's own tests, "
        f"{noticed['other tests']} by others, {noticed['no test']} survived",
        flush=True,
    )
    if len(drawn) < count:
        print(f"only {len(drawn)} of {count} requirements have a line to mutate")
    return noticed["no test"] > 0 or len(drawn) < count


def main() -> int:
    """Run one seed after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--count", type=int, default=50)
    arguments = parser.parse_args()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tests = pool.submit(other_tests)
        found = [has_survivors(seed, arguments.count, pool, tests) for seed in arguments.seed]
    return int(any(found))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        sys.exit(f"mutants: {error}")
