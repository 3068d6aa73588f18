"""Makes every mutation of the unit, the registers, the packets and the processor, as far as time
allows, and says which test is the first to notice each.

    python tests/mutants/whole.py [--minutes N] [--again]

A line carries a rule if a test of a requirement runs it; only those count. First come the tests of
requirements that run the line, then the others. Code that also ran while the tests were loaded is
mutated in a process of its own as well, for all tests. The results are in
`build/mutants/results.txt`, a line a mutation; a run goes on from there, and repeats mutations of
files that have changed since. Exit
code 1 if no requirement's test notices a mutation and neither `equivalent.txt` nor `no_row.txt` has
the reason, if one of these explains what needs it no more, or if time was too short.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType

import pytest
from _pytest.runner import runtestprotocol

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path.insert(0, str(TESTS))

from mutants import live  # noqa: E402
from mutants.mutation import Mutation, effects, mutations  # noqa: E402
from mutants.plugin import FOREIGN, module_of, rows_of, sources  # noqa: E402
from mutants.results import RESULTS, Result, load, save, score, unexplained  # noqa: E402
from mutants.run import PASSED, USES  # noqa: E402
from mutants.run import pytest as run  # noqa: E402

FOLDERS = ("packets", "registers", "unit", "processor", "scenario")
SLOW = ("scenario/test_paths.py", "scenario/test_garbled.py", "unit/bulk/")
"""They decode, or run all of many programs: others notice before."""
OUTSIDE = ("rtit.packets.rust_table", "rtit.unit.parameters.page")
"""They write files of the tree, and another test compares those."""
SEEN, TRIED = 3, 15
"""Examples of a property, at most: to see its lines, and to notice a mutation."""
ALL_SECONDS = 600
"""Of processor time, for all tests in a process of their own."""
NEW = Result("", "new", "", "")


@dataclass(frozen=True)
class Work:
    """A mutation that is to be made; `digest` is that of its file."""

    mutation: Mutation
    path: Path
    digest: str


def every() -> list[Work]:
    """All mutations, in an order that spreads over the files."""
    found = []
    known = effects(path.read_text() for path in sources())
    for path in sources():
        module, text = module_of(path), path.read_text()
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        if module not in OUTSIDE:
            found += [Work(each, path, digest) for each in mutations(module, text, known)]
    return sorted(found, key=lambda work: hashlib.sha256(work.mutation.name.encode()).digest())


class Whole:
    """In the place of pytest's own loop over the tests."""

    def __init__(self, seconds: float, *, again: bool) -> None:
        self._end = time.monotonic() + seconds
        self._results = {} if again else load()
        self._paths = [str(path) for path in sources()]
        self._loading = live.Loading(self._paths)
        self.whole = False
        self._loading.start()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that run on every machine."""
        self._loading.stop()
        items[:] = [item for item in items if not FOREIGN & set(getattr(item, "fixturenames", ()))]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """See each test once, then make the mutations."""
        tests = self._seen(session.items)
        alive = live.functions(self._paths)
        gc.freeze()
        works = every()
        names = {work.mutation.name for work in works}
        self._results = {name: each for name, each in self._results.items() if name in names}
        self.whole = True
        due = [
            work
            for work in works
            if self._results.get(work.mutation.name, NEW).digest != work.digest
        ]
        for made, work in enumerate(due):
            if time.monotonic() > self._end:
                self.whole = False
                break
            self._results[work.mutation.name] = self._result(work, tests, alive[str(work.path)])
            if made % 20 == 19:
                self._keep()
                print(f"{made + 1} of {len(due)}", flush=True)
        self._keep()
        left = [
            work for work in works if self._results.get(work.mutation.name, NEW).who == "loading"
        ]
        files = _quickest_first(tests)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for result in pool.map(lambda work: self._afresh(work, files), left):
                self._results[result.name] = result
                self._keep()
        return True

    def _afresh(self, work: Work, files: list[str]) -> Result:
        """The same in a process of its own, where the mutation is there from the start."""
        name = work.mutation.name
        if time.monotonic() > self._end:
            self.whole = False
            return self._results[name]
        with tempfile.TemporaryDirectory() as folder:
            failed = Path(folder) / "failed"
            code = run(
                files,
                RTIT_MUTANT=json.dumps(asdict(work.mutation)),
                RTIT_FAILED=str(failed),
                RTIT_SECONDS=str(ALL_SECONDS),
            )
            if code == PASSED:
                return Result(name, "nobody", work.digest, "")
            if not failed.exists():
                return Result(name, "row", work.digest, "the tests cannot be loaded, or do not end")
            found = json.loads(failed.read_text())
        who = "row" if found["rows"] else "test"
        return Result(name, who, work.digest, min(found["rows"], default=found["test"]))

    def _keep(self) -> None:
        save(self._results)

    def _seen(self, items: list[pytest.Item]) -> list[live.Test]:
        lines = live.Lines(self._paths)
        tests = []
        for item, after in zip(items, [*items[1:], None], strict=True):
            live.bounded(item, SEEN)
            test = live.Test(item, frozenset(rows_of(item)))
            before = time.process_time()
            with lines.seen(test.lines):
                reports = runtestprotocol(item, log=False, nextitem=after)
            test.seconds = time.process_time() - before
            if any(each.failed for each in reports):
                print(f"left out, it fails without a mutation: {item.nodeid}", flush=True)
            else:
                tests.append(test)
            live.bounded(item, TRIED)
        return tests

    def _result(self, work: Work, tests: list[live.Test], alive: list[FunctionType]) -> Result:
        mutation, path = work.mutation, work.path
        place = (str(path), mutation.line)
        reached = sorted(
            (test for test in tests if place in test.lines),
            key=lambda test: (not test.rows, test.seconds),
        )
        if not reached or not reached[0].rows:
            return Result(mutation.name, "no rule", work.digest, "")
        changed = live.changes(mutation, path)
        code, test = live.attempt(changed, alive, reached)
        if test is not None:
            if test.rows:
                return Result(mutation.name, "row", work.digest, min(test.rows))
            return Result(mutation.name, "test", work.digest, test.item.nodeid)
        names = {each.co_qualname for each in changed}
        ran = {name for file, name in self._loading.ran if file == str(path)} - {"<module>"}
        loading = code == live.ABSENT or not names.isdisjoint(ran)
        return Result(mutation.name, "loading" if loading else "nobody", work.digest, "")


def _quickest_first(tests: list[live.Test]) -> list[str]:
    seconds: dict[str, float] = defaultdict(float)
    for test in tests:
        seconds[str(test.item.path)] += test.seconds
    return sorted(seconds, key=lambda file: seconds[file])


def main() -> int:
    """Go on from what is known; say what survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--again", action="store_true", help="nothing is known")
    arguments = parser.parse_args()
    paths = sorted(path for folder in FOLDERS for path in (TESTS / folder).rglob("test_*.py"))
    kept = [
        str(path)
        for path in paths
        if USES.search(path.read_text()) and not str(path.relative_to(TESTS)).startswith(SLOW)
    ]
    whole = Whole(arguments.minutes * 60, again=arguments.again)
    without = ("cacheprovider", "logging", "warnings", "faulthandler")
    options = [word for name in without for word in ("-p", f"no:{name}")]
    code = pytest.main(["-q", "-s", *options, *kept], plugins=[whole])
    if code:
        return int(code)
    results = load().values()
    made = f"{len(results)} of {len(every())} mutations made"
    print(f"{RESULTS.name}: {made}: {dict(score(results))}")
    left = unexplained(results)
    print(*left, sep="\n")
    return int(bool(left) or not whole.whole)


if __name__ == "__main__":
    sys.exit(main())
