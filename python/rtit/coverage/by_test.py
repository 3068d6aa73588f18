"""Coverage by test: which functions and source lines each test ran.

`pytest --rtit-coverage` writes a file for each test; `rtit coverage --by-test` reads these files,
or takes each recording as a test.
"""

from __future__ import annotations

import re
from binascii import crc32
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.coverage.source_coverage import source_files
from rtit.errors import InputError, UsageError
from rtit.image import function_of_cold_part
from rtit.image.inlined_calls import FunctionIndex, InlinedCalls
from rtit.text_escaping import format_json, read_json_file, similar_names_hint

if TYPE_CHECKING:
    from rtit.coverage.file_coverage import Coverage, FileCoverage

SUFFIX = ".coverage.json"
_MAX_FILE_NAME = 150


@dataclass(frozen=True, slots=True)
class ExecutedCode:
    """Code of one file that a test ran: functions by name, inlined ones too, and the count of each
    source line by source file.
    """

    path: str
    functions: frozenset[str]
    lines: Mapping[str, Mapping[int, int]]


@dataclass(slots=True)
class CoverageOfTest:
    """What one test ran. `programs`: paths of the recorded programs. `losses`: a sentence for each
    kind of loss; `has_gaps`: parts of the execution are missing.
    """

    name: str
    files: list[ExecutedCode] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    has_gaps: bool = False

    @property
    def functions(self) -> set[str]:
        """Names of all functions."""
        return {name for code in self.files for name in code.functions}

    @property
    def lines(self) -> set[tuple[str, int]]:
        """All source lines, as path and number."""
        return {
            (path, line)
            for code in self.files
            for path, counts in code.lines.items()
            for line in counts
        }

    def line_count(self, path: str, line: int) -> int:
        """Return how often a source line ran."""
        return sum(code.lines.get(path, {}).get(line, 0) for code in self.files)

    def with_files(self, names: Collection[str]) -> CoverageOfTest:
        """Return the code of files with one of these names or paths."""
        files = [code for code in self.files if {code.path, PurePath(code.path).name} & {*names}]
        return replace(self, files=files)


def coverage_of_test(name: str, found: Coverage) -> CoverageOfTest:
    """Return what the recordings of a test ran."""
    files = [_executed_code(code, found) for code in found.files if len(code.offset)]
    return CoverageOfTest(name, files, sorted(found.programs), found.losses, found.has_gaps)


def _executed_code(code: FileCoverage, found: Coverage) -> ExecutedCode:
    from rtit.coverage.file_coverage import Coverage

    of_file = Coverage([code])
    lines = {
        source.path: {line: count for line, count in source.iterate_lines() if count}
        for source in source_files(of_file)
        if source.lines_hit
    }
    found.losses += of_file.losses
    found.has_gaps |= of_file.has_gaps
    return ExecutedCode(code.path, frozenset(_function_names(code)), lines)


def _function_names(code: FileCoverage) -> Iterator[str]:
    from rtit._core import demangle

    owners = FunctionIndex(code.symbols).find_functions(code.offset)
    for owner in np.unique(owners[owners >= 0]).tolist():
        name = code.symbols.name(owner)
        yield demangle(function_of_cold_part(name) or name)
    inlined = InlinedCalls(code.symbols, code.offset)
    calls = {*np.unique(inlined.innermost).tolist()} - {-1}
    while calls:
        yield from (demangle(inlined.name_and_file(call)[0]) for call in calls)
        outer = {int(inlined.parents[call]) for call in calls}
        calls = {call for call in outer if call < len(inlined.parents)}


def write_coverage_of_test(folder: Path, found: CoverageOfTest) -> None:
    """Write the file of a test. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    # names of different tests may have the same characters that file names can have
    name = re.sub(r"[^\w.\-\[\]]+", "_", found.name)[-_MAX_FILE_NAME:]
    path = folder / f"{name}-{crc32(found.name.encode(errors='replace')):08x}{SUFFIX}"
    value = {
        "test": found.name,
        "programs": found.programs,
        "losses": found.losses,
        "has_gaps": found.has_gaps,
        "files": [
            {"path": code.path, "functions": sorted(code.functions), "lines": code.lines}
            for code in found.files
        ],
    }
    path.write_text(format_json(value) + "\n")


def coverage_files(path: Path) -> list[Path]:
    """Return the files of tests in a folder, or the path itself if it is one; none for others."""
    if path.is_dir():
        return sorted(path.glob(f"*{SUFFIX}"))
    return [path] if path.name.endswith(SUFFIX) else []


def read_coverage_of_test(path: Path) -> CoverageOfTest:
    """Return the coverage in a file of a test. Raises InputError, OSError."""
    try:
        value = read_json_file(path)
        return CoverageOfTest(
            _text(value["test"]),
            [_parse_code(each) for each in value["files"]],
            [_text(each) for each in value["programs"]],
            [_text(each) for each in value["losses"]],
            value["has_gaps"] is not False,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"no coverage as pytest --rtit-coverage stores it: {error!r}"
        raise InputError(message, source=str(path)) from None


def _parse_code(value: Any) -> ExecutedCode:
    lines = {
        str(path): {int(line): int(count) for line, count in counts.items()}
        for path, counts in value["lines"].items()
    }
    return ExecutedCode(_text(value["path"]), frozenset(map(_text, value["functions"])), lines)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def tests_of_function(tests: Sequence[CoverageOfTest], function: str) -> list[str]:
    """Return the names of the tests that ran a function.

    Raises UsageError if no test did, because the name may be wrong.
    """
    ran = [test.name for test in tests if function in test.functions]
    if not ran:
        known = sorted({name for test in tests for name in test.functions})
        raise UsageError(
            f"--function {function}: no test ran a function with this name"
            f"{similar_names_hint(function, known)}"
        )
    return ran


def tests_of_line(tests: Sequence[CoverageOfTest], line: str) -> dict[str, int]:
    """Return the names of the tests that ran a source line, with counts.

    `line` is FILE:LINE; FILE is a path, or the end of one. Raises UsageError if no test ran code
    of the file, or several files match.
    """
    name, _, number = line.rpartition(":")
    if not (name and number.isascii() and number.isdecimal() and len(number) < 10):
        raise UsageError(f"--line {line}: expected FILE:LINE")
    known = {path for test in tests for path, _ in test.lines}
    parts = PurePath(name).parts
    paths = sorted(path for path in known if PurePath(path).parts[-len(parts) :] == parts)
    if not paths:
        hint = similar_names_hint(PurePath(name).name, {PurePath(path).name for path in known})
        raise UsageError(f"--line {line}: no test ran code of this file{hint}")
    if len(paths) > 1:
        raise UsageError(f"--line {line}: several files match: {', '.join(paths)}")
    counts = {test.name: test.line_count(paths[0], int(number)) for test in tests}
    return {test: count for test, count in counts.items() if count}
