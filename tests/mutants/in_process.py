"""Makes mutations in a process that has already loaded the tests, which is ten times as fast.

A forked child replaces the code of a function, and runs the tests that execute the line. A
mutation of code that ran while the tests were loaded takes effect only in part.
"""

from __future__ import annotations

import gc
import os
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from mutants.mutation import Mutation, mutated

PASSED, FAILED, ABSENT = 0, 1, 2
_INDEX = struct.Struct("<I")


@dataclass
class TracedTest:
    """A test with the lines (file, line) that it runs, and its processor time."""

    item: pytest.Item
    rows: frozenset[str]
    seconds: float = 0
    lines: set[tuple[str, int]] = field(default_factory=set)


class LineTracer:
    """Records which lines of some files run."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = frozenset(paths)
        self._all: dict[CodeType, frozenset[int]] = {}

    @contextmanager
    def record_lines(self, lines: set[tuple[str, int]]) -> Iterator[None]:
        """Add the lines that run in the body to `lines`."""
        left: dict[CodeType, set[int]] = {}

        def call(frame: FrameType, event: str, argument: Any) -> Any:
            code = frame.f_code
            if code.co_filename not in self._paths or code.co_name == "<module>":
                return None
            if code not in left:
                left[code] = set(self._lines(code))
            missing = left[code]
            if not missing:
                return None
            name = code.co_filename

            def line(frame: FrameType, event: str, argument: Any) -> Any:
                if frame.f_lineno in missing:
                    missing.discard(frame.f_lineno)
                    lines.add((name, frame.f_lineno))
                return line

            lines.add((name, frame.f_lineno))
            return line

        before = sys.gettrace()
        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _lines(self, code: CodeType) -> frozenset[int]:
        if code not in self._all:
            numbers = {line for _, _, line in code.co_lines() if line is not None}
            self._all[code] = frozenset(numbers)
        return self._all[code]


class LoadTracer:
    """Records which functions of some files run while tests are loaded."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = frozenset(paths)
        self.executed: set[tuple[str, str]] = set()

    def _call(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename in self._paths:
            self.executed.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    def start(self) -> None:
        """Start to record."""
        sys.setprofile(self._call)

    def stop(self) -> None:
        """Stop when all tests are loaded."""
        sys.setprofile(None)


def limit_examples(item: pytest.Item, examples: int) -> None:
    """Limit the number of examples of a property, and report its first failure."""
    function = getattr(item, "function", None)
    name = "_hypothesis_internal_use_settings"
    if (settings := getattr(function, name, None)) is not None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        limited = hypothesis.settings(
            settings,
            max_examples=min(settings.max_examples, examples),
            phases=phases,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        setattr(function, name, limited)


def functions_by_file(paths: Sequence[str]) -> dict[str, list[FunctionType]]:
    """Return every existing function, by its source file."""
    found: dict[str, list[FunctionType]] = {path: [] for path in paths}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename in found:
            found[each.__code__.co_filename].append(each)
    return found


def changed_code(mutation: Mutation, path: Path) -> dict[CodeType, CodeType]:
    """Return the code objects that a mutation changes, with their new code."""
    text = path.read_text()
    old = compile(text, str(path), "exec", dont_inherit=True)
    new = compile(mutated(mutation, text), str(path), "exec", dont_inherit=True)
    return dict(_changed_pairs(old, new))


def _changed_pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    if old == new:
        return
    yield old, new
    before = [each for each in old.co_consts if isinstance(each, CodeType)]
    after = [each for each in new.co_consts if isinstance(each, CodeType)]
    # A call that is dropped takes the functions among its arguments with it.
    if len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from _changed_pairs(one, other)


def run_with_changes(
    changed: dict[CodeType, CodeType],
    functions: Sequence[FunctionType],
    tests: Sequence[TracedTest],
) -> tuple[int, TracedTest | None]:
    """Run tests in a child with changed code: PASSED, FAILED with the test, or ABSENT.

    ABSENT: no such function exists, or it cannot take the code, which closes over other names.
    """
    found = [(each, changed[each.__code__]) for each in functions if each.__code__ in changed]
    fits = all(len(f.__code__.co_freevars) == len(code.co_freevars) for f, code in found)
    if not found or not fits:
        return ABSENT, None
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = ABSENT
        try:
            os.close(reading)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            for function, other in found:
                function.__code__ = other
            code = _run_tests(tests, writing)
        finally:
            os._exit(code)
    os.close(writing)
    index = 0
    with os.fdopen(reading, "rb") as pipe:
        while len(data := pipe.read(_INDEX.size)) == _INDEX.size:
            (index,) = _INDEX.unpack(data)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0 and -code != signal.SIGVTALRM:
        raise RuntimeError(f"a child was ended by signal {-code}")
    if code == ABSENT:
        raise RuntimeError("a child could not run the tests")
    return (PASSED, None) if code == PASSED else (FAILED, tests[index])


def _run_tests(tests: Sequence[TracedTest], writing: int) -> int:
    gc.disable()
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    following = [*[each.item for each in tests[1:]], None]
    for index, (test, after) in enumerate(zip(tests, following, strict=True)):
        os.write(writing, _INDEX.pack(index))
        signal.setitimer(signal.ITIMER_VIRTUAL, 3 + 20 * test.seconds)
        try:
            reports = runtestprotocol(test.item, log=False, nextitem=after)
        except BaseException:  # no test ends so without a mutation
            return FAILED
        if any(each.failed for each in reports):
            return FAILED
    return PASSED
