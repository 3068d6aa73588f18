"""Mutates the code under randomly drawn requirements, and says which mutations no test notices.

    python tests/mutants/run.py [--seed N] [--count N]

A requirement is drawn, a line that its tests run, and a change to it: of the lines, one that few
other drawn requirements run. First the requirement's own tests have to notice, then, if they do
not, those of the whole unit. A mutation that no test notices is a survivor: exit code 1. The draw
depends on the seed, the requirement and the text of the code alone, so that a change in one place
does not change it in others. `equivalent.txt` names mutations that change nothing that the model
promises, each with the reason.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path.insert(0, str(TESTS))

from mutants.mutation import Mutation, mutations  # noqa: E402
from mutants.plugin import module_of, sources  # noqa: E402
from requirements.check import claimed, requirements  # noqa: E402

EQUIVALENT = HERE / "equivalent.txt"
SPARE = 20
SECONDS = 120
NO_TESTS = 5
BROAD = ["unit", "scenario", "golden", "property"]
"""The folders of tests that see the unit without a live program."""


@dataclass(frozen=True)
class Drawn:
    row: str
    mutation: Mutation
    files: tuple[str, ...]


def rank(*words: object) -> str:
    return hashlib.sha256("\0".join(map(str, words)).encode()).hexdigest()


def pytest(files: list[str], **environment: str) -> int:
    """pytest's exit code: 1 also for tests that do not come to an end."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutants.plugin", "-p",
               "no:cacheprovider", *files]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(TESTS), **environment}
    try:
        done = subprocess.run(
            command, cwd=TESTS.parent, env=env, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return 1
    if done.returncode == NO_TESTS:
        sys.exit(f"no tests in {files}")
    return done.returncode


def rows_in_order(seed: int) -> list[str]:
    tested = claimed()
    rows = [
        row
        for row, facts in requirements().items()
        if row in tested and facts["side"] != "decoder" and facts["kind"] != "note"
    ]
    return sorted(rows, key=lambda row: rank(seed, row))


def seen_by(rows: list[str]) -> list[dict[str, Any]]:
    """What each test of these rows ran."""
    places = claimed()
    files = sorted({place.rsplit(":", 1)[0] for row in rows for place in places[row]})
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        code = pytest(
            [f"tests/{file}" for file in files], RTIT_ROWS=" ".join(rows), RTIT_LINES=str(lines)
        )
        if code != 0:
            sys.exit(f"the tests do not pass without a mutation (pytest ended with {code})")
        seen: list[dict[str, Any]] = json.loads(lines.read_text())
    return seen


def draw(seed: int, count: int) -> list[Drawn]:
    rows = rows_in_order(seed)[: count + SPARE]
    seen = seen_by(rows)
    every: dict[str, list[Mutation]] = {
        str(path): list(mutations(module_of(path), path.read_text())) for path in sources()
    }
    equivalent = known_equivalents()
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
            drawn.append(Drawn(row, mutation, tuple(sorted(files))))
    return drawn


def known_equivalents() -> set[str]:
    lines = EQUIVALENT.read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def verdict(drawn: Drawn) -> str:
    """Who noticed: the row's own tests, other tests, or nobody."""
    mutant = json.dumps(asdict(drawn.mutation))
    if pytest(list(drawn.files), RTIT_MUTANT=mutant, RTIT_ROWS=drawn.row) != 0:
        return "its own tests"
    if pytest([f"tests/{folder}" for folder in BROAD], RTIT_MUTANT=mutant) != 0:
        return "other tests"
    return "nobody"


def main() -> int:
    """Draw, run, and say what survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    arguments = parser.parse_args()
    drawn = draw(arguments.seed, arguments.count)
    noticed: Counter[str] = Counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for each, who in zip(drawn, pool.map(verdict, drawn), strict=True):
            noticed[who] += 1
            print(f"{each.row:12} noticed by {who:14} {each.mutation.name}", flush=True)
    print(
        f"{len(drawn)} mutations under {len(drawn)} requirements (seed {arguments.seed}): "
        f"{noticed['its own tests']} noticed by the requirement's own tests, "
        f"{noticed['other tests']} by others, {noticed['nobody']} survived"
    )
    return 1 if noticed["nobody"] or len(drawn) < arguments.count else 0


if __name__ == "__main__":
    sys.exit(main())
