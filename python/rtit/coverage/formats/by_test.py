"""Coverage by test as text, and as JSON with the keys of coverage.py's report with contexts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtit.coverage.by_test import CoverageOfTest


def by_test_text(tests: Sequence[CoverageOfTest]) -> Iterator[str]:
    """Return a line for each test: how many lines and functions it ran, and how many lines no other
    test ran.
    """
    lines = [test.lines for test in tests]
    runs = Counter(line for of_test in lines for line in of_test)
    yield f"{'functions':>11} {'lines':>11} {'only here':>11}  test"
    for test, of_test in zip(tests, lines, strict=True):
        unique = sum(runs[line] == 1 for line in of_test)
        yield f"{len(test.functions):11,} {len(of_test):11,} {unique:11,}  {test.name}"


def by_test_json(tests: Sequence[CoverageOfTest]) -> dict[str, Any]:
    """Return the source lines by file, with the tests that ran each, and the functions."""
    contexts: dict[str, dict[int, list[str]]] = {}
    functions: dict[str, list[str]] = {}
    for test in tests:
        for path, line in sorted(test.lines):
            contexts.setdefault(path, {}).setdefault(line, []).append(test.name)
        for name in sorted(test.functions):
            functions.setdefault(name, []).append(test.name)
    return {
        "tests": [test.name for test in tests],
        "files": {
            path: {
                "executed_lines": sorted(lines),
                "contexts": {str(line): lines[line] for line in sorted(lines)},
            }
            for path, lines in sorted(contexts.items())
        },
        "functions": {name: functions[name] for name in sorted(functions)},
    }
