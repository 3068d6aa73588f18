"""Mutates the code under randomly drawn requirements, and says which mutations no test notices.

    python tests/mutants/run.py [--seed N...] [--count N]

A requirement is drawn, a line that its tests run, and a change to it: of the lines, one that few
other drawn requirements run. First the requirement's own tests have to notice, then, if they do
not, the others that see the unit without a live program. A mutation that no test notices is a
survivor: exit code 1. The draw depends on the seed, the requirement and the text of the code alone,
so that a change in one place does not change it in others. `equivalent.txt` names mutations that
change nothing that the model promises, each with the reason.

A mutation counts as noticed only if a test fails, takes far more processor time than without it, or
no longer loads; all the tests have to pass without it. Whatever else happens ends the run.
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
from mutants.plugin import PACKAGE, PARTS, module_of, sources  # noqa: E402
from mutants.results import EQUIVALENT, RUST, known_equivalents  # noqa: E402
from requirements.check import claimed, requirements  # noqa: E402

SPARE = 20
SECONDS = 900
"""A run takes longer only where the machine is far too slow: processor time is limited before."""
FOLDERS = ("scenario", "packets", "registers", "unit", "processor", "capture", "cli")
USES = re.compile(rf"\brtit\.({'|'.join(PARTS)}|scenario|options)\b|\bunit\.(?:world|execution)\b")
PASSED, FAILED, NOT_COLLECTED = 0, 1, 2


@dataclass(frozen=True)
class Drawn:
    row: str
    mutation: Mutation
    files: tuple[str, ...]
    seconds: int
    """Of processor time that the requirement's own tests may take."""


@dataclass(frozen=True)
class Others:
    """The tests that see the unit without a live program, the quickest files first."""

    files: tuple[str, ...]
    seconds: int


def rank(*words: object) -> str:
    return hashlib.sha256("\0".join(map(str, words)).encode()).hexdigest()


def pytest(files: Iterable[str], **environment: str) -> int:
    """Run tests; how pytest ended."""
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


def seen_in(files: Iterable[str], **environment: str) -> list[dict[str, Any]]:
    """What was seen of each test in files that all pass."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen"
        code = pytest(files, RTIT_SEEN=str(seen), **environment)
        if code != PASSED:
            raise RuntimeError(
                f"the tests do not pass without a mutation (pytest ended with {code})"
            )
        found: list[dict[str, Any]] = json.loads(seen.read_text())
    return found


def within(file: str) -> bool:
    """Whether a file, relative to the tests, is of those that need no live program."""
    return file.split("/", maxsplit=1)[0] in FOLDERS


def rows_in_order(seed: int) -> list[str]:
    tested = {row for row, places in claimed().items() if any(map(within, places))}
    rows = [
        row
        for row, facts in requirements().items()
        if row in tested and facts["side"] != "decoder" and facts["kind"] != "note"
    ]
    return sorted(rows, key=lambda row: rank(seed, row))


def seen_by(rows: list[str]) -> list[dict[str, Any]]:
    """What each test of these rows ran."""
    places = claimed()
    files = {place.rsplit(":", 1)[0] for row in rows for place in places[row] if within(place)}
    return seen_in(
        [f"tests/{file}" for file in sorted(files)], RTIT_ROWS=" ".join(rows), RTIT_LINES="1"
    )


def draw(seed: int, count: int) -> list[Drawn]:
    rows = rows_in_order(seed)[: count + SPARE]
    seen = seen_by(rows)
    limit = limited(seen)
    known = effects(path.read_text() for path in sources())
    every: dict[str, list[Mutation]] = {
        str(path): list(mutations(module_of(path), path.read_text(), known)) for path in sources()
    }
    equivalent = known_equivalents()
    names = {mutation.name for found in every.values() for mutation in found}
    names |= {name for name in equivalent if name.startswith(RUST)}
    if unknown := sorted(equivalent - names):
        raise RuntimeError(f"{EQUIVALENT.name} has mutations of code that is not there: {unknown}")
    popular: Counter[tuple[str, int]] = Counter()
    ran: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        tests = [test for test in seen if row in test["rows"]]
        ran[row] = {
            (path, line)
            for test in tests
            for path, lines in test["lines"].items()
            for line in lines
        }
        popular.update(ran[row])
    drawn: list[Drawn] = []
    taken: set[str] = set()
    for row in rows:
        candidates = [
            (popular[path, mutation.line], rank(seed, row, mutation.name), mutation)
            for path in {path for path, _ in ran[row]}
            for mutation in every[path]
            if (path, mutation.line) in ran[row]
            and mutation.name not in taken
            and mutation.name not in equivalent
        ]
        if candidates and len(drawn) < count:
            mutation = min(candidates)[2]
            taken.add(mutation.name)
            files = {test["file"] for test in seen if row in test["rows"]}
            drawn.append(Drawn(row, mutation, tuple(sorted(files)), limit))
    return drawn


def limited(seen: list[dict[str, Any]]) -> int:
    """The processor time to allow tests that were seen, in seconds."""
    seconds: float = sum(test["seconds"] for test in seen)
    return 30 + round(3 * seconds)


def others() -> Others:
    paths = sorted(path for folder in FOLDERS for path in (TESTS / folder).rglob("test_*.py"))
    seen = seen_in(str(path) for path in paths if USES.search(path.read_text()))
    seconds: Counter[str] = Counter()
    for test in seen:
        seconds[test["file"]] += test["seconds"]
    if missing := [each for each in FOLDERS if not any(f"/{each}/" in file for file in seconds)]:
        raise RuntimeError(f"no tests in {missing}")
    return Others(tuple(sorted(seconds, key=lambda file: seconds[file])), limited(seen))


def verdict(drawn: Drawn, others: Others) -> str:
    """Who noticed: the row's own tests, other tests (or all, if they cannot load), or nobody."""
    mutant = json.dumps(asdict(drawn.mutation))
    code = pytest(
        drawn.files, RTIT_MUTANT=mutant, RTIT_ROWS=drawn.row, RTIT_SECONDS=str(drawn.seconds)
    )
    if code == PASSED:
        code = pytest(others.files, RTIT_MUTANT=mutant, RTIT_SECONDS=str(others.seconds))
        return "nobody" if code == PASSED else "other tests"
    return "other tests" if code == NOT_COLLECTED else "its own tests"


def survivors(seed: int, count: int, pool: Executor, others: Future[Others]) -> bool:
    """Draw, run, and say what survived; whether anything did, or there was too little to draw."""
    drawn = draw(seed, count)
    tests = others.result()
    noticed: Counter[str] = Counter()
    for each, who in zip(drawn, pool.map(lambda it: verdict(it, tests), drawn), strict=True):
        noticed[who] += 1
        print(f"{each.row:12} noticed by {who:14} {each.mutation.name}", flush=True)
    print(
        f"{len(drawn)} mutations under {len(drawn)} requirements (seed {seed}): "
        f"{noticed['its own tests']} noticed by the requirement's own tests, "
        f"{noticed['other tests']} by others, {noticed['nobody']} survived",
        flush=True,
    )
    if len(drawn) < count:
        print(f"only {len(drawn)} of {count} requirements have a line to mutate")
    return noticed["nobody"] > 0 or len(drawn) < count


def main() -> int:
    """Take one seed after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--count", type=int, default=50)
    arguments = parser.parse_args()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tests = pool.submit(others)
        found = [survivors(seed, arguments.count, pool, tests) for seed in arguments.seed]
    return int(any(found))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        sys.exit(f"mutants: {error}")
