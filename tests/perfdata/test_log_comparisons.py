"""The comparisons of QEMU's log with the state of the processors, as a fact of a recording."""

from __future__ import annotations

from rtit.perfdata.log_comparisons import (
    LogComparison,
    format_comparisons,
    parse_comparisons,
)

COMPARISONS = [LogComparison("CPL", 7357, 0), LogComparison("RFLAGS.IF", 12345, 2)]


def test_fact_has_all_comparisons() -> None:
    assert parse_comparisons(format_comparisons(COMPARISONS)) == COMPARISONS
    assert parse_comparisons("") == []


def test_text_has_the_number_of_comparisons_and_differences() -> None:
    end = "comparisons of QEMU's log with the state of the processors"
    assert list(map(str, COMPARISONS)) == [f"7,357 {end}", f"2 of 12,345 {end}"]
