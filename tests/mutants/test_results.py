"""Which mutations need an explanation in equivalent.txt or no_row.txt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mutants import results
from mutants.results import Result, unexplained


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes equivalent.txt and no_row.txt."""

    def write(equivalent: str, no_row: str) -> None:
        for name, text in (("EQUIVALENT", equivalent), ("NO_ROW", no_row)):
            (tmp_path / name).write_text(f"# Why.\n{text}\n")
            monkeypatch.setattr(results, name, tmp_path / name)

    return write


ROW = Result("m:f: swap: a < b", "row", "0", "PIP-001")
TEST = Result("m:f: drop call: require(a * b)", "test", "0", "tests/test_it.py::test_it")
NOBODY = Result("m:g: flip: True", "nobody", "0", "")
LOADING = Result("m:h: flip: True", "loading", "0", "")


def test_who_needs_an_explanation(lists: Callable[[str, str], None]) -> None:
    lists("", "")
    assert unexplained([ROW]) == []
    wanted = [f"{each.who}: {each.name}" for each in (TEST, NOBODY, LOADING)]
    assert unexplained([ROW, TEST, NOBODY, LOADING]) == wanted


def test_an_explanation_is_of_its_kind(lists: Callable[[str, str], None]) -> None:
    lists(NOBODY.name, "m:f: drop call: require(*")
    assert unexplained([ROW, TEST, NOBODY]) == []
    lists(TEST.name, "m:*")
    assert unexplained([ROW, TEST]) == [f"explains nothing: {TEST.name}"]
    lists("", "m:*")
    assert unexplained([TEST, NOBODY]) == [f"nobody: {NOBODY.name}"]


def test_an_explanation_that_nothing_needs(lists: Callable[[str, str], None]) -> None:
    lists(f"m:x: flip: True\n{ROW.name}", "m:f: *\nm:f")
    left = unexplained([TEST, ROW])
    assert left == ["explains nothing: m:f", f"explains nothing: {ROW.name}"]
