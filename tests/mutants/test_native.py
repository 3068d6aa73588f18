"""The table of changes to the decoder, and how they are put behind switches."""

from __future__ import annotations

import pytest

from mutants.native import ROOT, Change, changes, switched
from requirements.check import requirements


def test_each_requirement_of_the_decoder_has_a_change() -> None:
    rows = {name for name, row in requirements().items() if row["side"] == "decoder"}
    every = changes()
    assert {change.row for change in every} == rows
    assert [change.number for change in every] == [*range(1, len(every) + 1)]
    assert all(change.old and change.old != change.new for change in every)


def test_each_change_has_its_place() -> None:
    """In the code as it is now: else none of them can be made."""
    places: dict[str, list[Change]] = {}
    for change in changes():
        places.setdefault(change.file, []).append(change)
    for path, every in places.items():
        assert "crate::mutant" in switched((ROOT / path).read_text(), every)


def change(number: int, before: str, old: str, after: str, new: str) -> Change:
    return Change(number, "ROW-001", "file.rs", before, old, after, new)


def test_expressions_and_statements() -> None:
    text = "fn f() {\n    a = b;\n    if c {\n        g();\n    }\n}\n"
    every = [change(1, "if ", "c", " {", "d"), change(2, "", "g();", "", "")]
    assert switched(text, every) == (
        "fn f() {\n    a = b;\n    if (if crate::mutant(1) { d } else { c }) {\n"
        "        if crate::mutant(2) {  } else { g(); }\n    }\n}\n"
    )


def test_two_changes_of_one_place() -> None:
    every = [change(1, "(", "c", ")", "d"), change(2, "f(", "c", ")", "e")]
    inner = "(if crate::mutant(1) { d } else { c })"
    assert switched("f(c)", every) == f"f((if crate::mutant(2) {{ e }} else {{ {inner} }}))"


@pytest.mark.parametrize(
    "every",
    [
        [change(1, "", "x", "", "")],
        [change(1, "", "c", "", "")],
        [change(1, "f(", "c", "", "d"), change(2, "", "f(c)", "", "g")],
    ],
    ids=["not there", "twice", "one within another"],
)
def test_what_has_no_place_of_its_own_is_refused(every: list[Change]) -> None:
    with pytest.raises(ValueError, match="ROW-001"):
        switched("f(c) c", every)
