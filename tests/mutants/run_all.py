"""Makes every mutation of unit, registers, packets and processor within a time limit.

python tests/mutants/run_all.py [--minutes N] [--again]

Prints which test notices each mutation first. Only lines that a test of a requirement runs are
mutated. Tests of requirements that run the line come first, then the others. Code that also ran
while the tests were loaded is mutated again in a new process. The results are in
`build/mutants/results.txt`, one line for each mutation; a run continues from there, and repeats
mutations of changed files. The exit code is 1 if a mutation lacks an explanation
(`equivalent.txt`, `no_row.txt`), an explanation is not needed, or time was too short.
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

from mutants import in_process  # noqa: E402
from mutants.mutation import Mutation, effects, mutations  # noqa: E402
from mutants.plugin import LOCAL_FIXTURES, module_name, mutated_files, requirement_ids  # noqa: E402
from mutants.results import (  # noqa: E402
    RESULTS,
    Result,
    count_by_noticer,
    load_results,
    save_results,
    unexplained_results,
)
from mutants.run_drawn import (  # noqa: E402
    PASSED,
    USES_UNIT,
    run_pytest,
)

FOLDERS = ("packets", "registers", "unit", "processor", "scenario")
SLOW_TESTS = ("scenario/test_paths.py", "scenario/test_garbled.py", "unit/bulk/")
"""Slow tests that decode or run many programs; other tests notice first."""
WRITING_MODULES = ("rtit.packets.rust_table", "rtit.unit.parameters.page")
"""They write files of the tree, which another test compares."""
TRACED_EXAMPLES, MUTANT_EXAMPLES = 3, 15
"""Maximum examples of a property: to trace its lines, and to notice a mutation."""
ALL_SECONDS = 600
"""Limit of processor time for all tests in a process of their own."""
NEW = Result("", "new", "", "")


@dataclass(frozen=True)
class PlannedMutation:
    """A mutation to make; `digest` is that of its file."""

    mutation: Mutation
    path: Path
    digest: str


def plan_mutations() -> list[PlannedMutation]:
    """Return all mutations, in an order that alternates between files."""
    found = []
    known = effects(path.read_text() for path in mutated_files())
    for path in mutated_files():
        module, text = module_name(path), path.read_text()
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        if module not in WRITING_MODULES:
            found += [
                PlannedMutation(each, path, digest) for each in mutations(module, text, known)
            ]
    return sorted(found, key=lambda each: hashlib.sha256(each.mutation.name.encode()).digest())


class MutationLoop:
    """Replaces pytest's loop over the tests."""

    def __init__(self, seconds: float, *, again: bool) -> None:
        self._end = time.monotonic() + seconds
        self._results = {} if again else load_results()
        self._paths = [str(path) for path in mutated_files()]
        self._loading = in_process.LoadTracer(self._paths)
        self.is_complete = False
        self._loading.start()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that run on every machine."""
        self._loading.stop()
        items[:] = [
            item for item in items if not LOCAL_FIXTURES & set(getattr(item, "fixturenames", ()))
        ]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Trace each test once, then make the mutations."""
        tests = self._trace_tests(session.items)
        functions = in_process.functions_by_file(self._paths)
        gc.freeze()
        plan = plan_mutations()
        names = {planned.mutation.name for planned in plan}
        self._results = {name: each for name, each in self._results.items() if name in names}
        self.is_complete = True
        due = [
            planned
            for planned in plan
            if self._results.get(planned.mutation.name, NEW).digest != planned.digest
        ]
        for done, planned in enumerate(due):
            if time.monotonic() > self._end:
                self.is_complete = False
                break
            self._results[planned.mutation.name] = self._run_mutation(
                planned, tests, functions[str(planned.path)]
            )
            if done % 20 == 19:
                self._save()
                print(f"{done + 1} of {len(due)}", flush=True)
        self._save()
        loading = [
            planned
            for planned in plan
            if self._results.get(planned.mutation.name, NEW).noticed_by == "loading"
        ]
        files = _quickest_first(tests)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for result in pool.map(
                lambda planned: self._run_in_new_process(planned, files), loading
            ):
                self._results[result.name] = result
                self._save()
        return True

    def _run_in_new_process(self, planned: PlannedMutation, files: list[str]) -> Result:
        """Make the mutation in a new process, before the code is loaded."""
        name = planned.mutation.name
        if time.monotonic() > self._end:
            self.is_complete = False
            return self._results[name]
        with tempfile.TemporaryDirectory() as folder:
            failed = Path(folder) / "failed"
            code = run_pytest(
                files,
                RTIT_MUTANT=json.dumps(asdict(planned.mutation)),
                RTIT_FAILED=str(failed),
                RTIT_SECONDS=str(ALL_SECONDS),
            )
            if code == PASSED:
                return Result(name, "no test", planned.digest, "")
            if not failed.exists():
                return Result(name, "row", planned.digest, "tests do not load, or do not end")
            found = json.loads(failed.read_text())
        noticed_by = "row" if found["rows"] else "test"
        return Result(name, noticed_by, planned.digest, min(found["rows"], default=found["test"]))

    def _save(self) -> None:
        save_results(self._results)

    def _trace_tests(self, items: list[pytest.Item]) -> list[in_process.TracedTest]:
        lines = in_process.LineTracer(self._paths)
        tests = []
        for item, after in zip(items, [*items[1:], None], strict=True):
            in_process.limit_examples(item, TRACED_EXAMPLES)
            test = in_process.TracedTest(item, frozenset(requirement_ids(item)))
            before = time.process_time()
            with lines.record_lines(test.lines):
                reports = runtestprotocol(item, log=False, nextitem=after)
            test.seconds = time.process_time() - before
            if any(each.failed for each in reports):
                print(f"left out, it fails without a mutation: {item.nodeid}", flush=True)
            else:
                tests.append(test)
            in_process.limit_examples(item, MUTANT_EXAMPLES)
        return tests

    def _run_mutation(
        self,
        planned: PlannedMutation,
        tests: list[in_process.TracedTest],
        functions: list[FunctionType],
    ) -> Result:
        mutation, path = planned.mutation, planned.path
        location = (str(path), mutation.line)
        reached = sorted(
            (test for test in tests if location in test.lines),
            key=lambda test: (not test.rows, test.seconds),
        )
        if not reached or not reached[0].rows:
            return Result(mutation.name, "no rule", planned.digest, "")
        changed = in_process.changed_code(mutation, path)
        code, test = in_process.run_with_changes(changed, functions, reached)
        if test is not None:
            if test.rows:
                return Result(mutation.name, "row", planned.digest, min(test.rows))
            return Result(mutation.name, "test", planned.digest, test.item.nodeid)
        names = {each.co_qualname for each in changed}
        executed = {name for file, name in self._loading.executed if file == str(path)} - {
            "<module>"
        }
        loading = code == in_process.ABSENT or not names.isdisjoint(executed)
        return Result(mutation.name, "loading" if loading else "no test", planned.digest, "")


def _quickest_first(tests: list[in_process.TracedTest]) -> list[str]:
    seconds: dict[str, float] = defaultdict(float)
    for test in tests:
        seconds[str(test.item.path)] += test.seconds
    return sorted(seconds, key=lambda file: seconds[file])


def main() -> int:
    """Continue from earlier results; print the mutations that survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--again", action="store_true", help="ignore earlier results")
    arguments = parser.parse_args()
    paths = sorted(path for folder in FOLDERS for path in (TESTS / folder).rglob("test_*.py"))
    selected = [
        str(path)
        for path in paths
        if USES_UNIT.search(path.read_text())
        and not str(path.relative_to(TESTS)).startswith(SLOW_TESTS)
    ]
    loop = MutationLoop(arguments.minutes * 60, again=arguments.again)
    disabled = ("cacheprovider", "logging", "warnings", "faulthandler")
    options = [word for name in disabled for word in ("-p", f"no:{name}")]
    code = pytest.main(["-q", "-s", *options, *selected], plugins=[loop])
    if code:
        return int(code)
    results = load_results().values()
    done = f"{len(results)} of {len(plan_mutations())} mutations made"
    print(f"{RESULTS.name}: {done}: {dict(count_by_noticer(results))}")
    problems = unexplained_results(results)
    print(*problems, sep="\n")
    return int(bool(problems) or not loop.is_complete)


if __name__ == "__main__":
    sys.exit(main())
