"""Memory of coverage of large files is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.coverage import Coverage, coverage, source_files
from rtit.trace import Trace
from support.limits import assert_peak_memory
from support.oversized import write_oversized
from support.oversized_elf import ELF_KINDS, FUNCTION_SIZE, TEXT
from support.properties import pairs_in_turn

SIZE = 1 << 21
"""Of code: 622,592 instructions and 262,144 lines if all of it runs."""
MOST = {"elf-little": 56, "elf-whole": 84}
"""Megabytes, with the file and the columns of executed code."""


def compute_coverage(path: Path) -> Coverage:
    with Trace(path) as trace:
        return coverage([(trace, trace.streams)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "kind"),
    pairs_in_turn(["text", "html", "cobertura", "lcov", "drcov", "afl"], reversed(ELF_KINDS)),
)
def test_each_format_takes_bounded_memory(form: str, kind: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    words = ["coverage", "--format", form, "-o", str(tmp_path / "out")]
    # libraries that it loads are not counted
    assert main([*words, str(write_oversized(small, kind, 1 << 12))]) == 0
    path = write_oversized(tmp_path, kind, SIZE)
    with assert_peak_memory(MOST[kind]):
        assert main([*words, str(path)]) == 0


def test_lines_and_branches_of_generated_file(tmp_path: Path) -> None:
    """A line has 8 bytes; every function has a branch, alternately taken."""
    size = 1 << 17
    functions = size // FUNCTION_SIZE
    found = compute_coverage(write_oversized(tmp_path, "elf-whole", size))
    one, other = source_files(found)
    assert [one.path, other.path] == ["/nowhere/source0.c", "/nowhere/source1.c"]
    assert list(one.lines) == list(range(1, size // 16 + 1))
    ran = functions // 6 * 6
    assert one.lines_hit == one.line_count
    assert one.outcomes_hit + other.outcomes_hit == ran
    assert one.outcome_count == other.outcome_count == functions
    [first, *_] = one.branches
    assert (first.address, first.line) == (TEXT + 52, 7)
    assert first.taken + first.not_taken == 1
    [(_, count, here)] = [row for row in one.iterate_lines_with_branches() if row[0] == 7]
    assert (count, here) == (1, [first])
    names = [each.name for each in one.functions[:3]]
    assert names == [
        "Flood0_0::with_a_name_of_usual_length",
        "Flood0_1::with_a_name_of_usual_length",
        "Flood1_0::with_a_name_of_usual_length",
    ]
    assert [each.line for each in one.functions[:3]] == [1, 1, 9]
