"""Which mutations need an explanation in equivalent.txt or no_row.txt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mutants import results
from mutants.results import Result, unexplained_results

ExplanationWriter = Callable[[str, str], None]


@pytest.fixture
def write_explanations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExplanationWriter:
    """Writes equivalent.txt and no_row.txt."""

    def write(equivalent: str, no_row: str) -> None:
        for name, text in (("EQUIVALENT", equivalent), ("NO_ROW", no_row)):
            (tmp_path / name).write_text(f"# Why.\n{text}\n")
            monkeypatch.setattr(results, name, tmp_path / name)

    return write


ROW = Result("m:f: swap: a < b", "row", "0", "PIP-001")
TEST = Result(
    "m:f: drop call: require(a * b)", "test", "0", "tests/test_it.py::test_written_example"
)
UNNOTICED = Result("m:g: flip: True", "no test", "0", "")
LOADING = Result("m:h: flip: True", "loading", "0", "")


def test_unnoticed_mutations_need_an_explanation(
    write_explanations: ExplanationWriter,
) -> None:
    write_explanations("", "")
    assert unexplained_results([ROW]) == []
    expected = [f"{each.noticed_by}: {each.name}" for each in (TEST, UNNOTICED, LOADING)]
    assert unexplained_results([ROW, TEST, UNNOTICED, LOADING]) == expected


def test_explanation_must_be_in_the_right_file(
    write_explanations: ExplanationWriter,
) -> None:
    write_explanations(UNNOTICED.name, "m:f: drop call: require(*")
    assert unexplained_results([ROW, TEST, UNNOTICED]) == []
    write_explanations(TEST.name, "m:*")
    assert unexplained_results([ROW, TEST]) == [f"explains nothing: {TEST.name}"]
    write_explanations("", "m:*")
    assert unexplained_results([TEST, UNNOTICED]) == [f"no test: {UNNOTICED.name}"]


def test_unneeded_explanation_is_a_problem(write_explanations: ExplanationWriter) -> None:
    write_explanations(f"m:x: flip: True\n{ROW.name}", "m:f: *\nm:f")
    problems = unexplained_results([TEST, ROW])
    assert problems == ["explains nothing: m:f", f"explains nothing: {ROW.name}"]
