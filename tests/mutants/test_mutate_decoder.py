"""The table of changes to the decoder, and the switches around them."""

from __future__ import annotations

import pytest

from mutants.mutate_decoder import ROOT, Change, read_changes, with_switches
from requirements.check import requirements


def test_every_decoder_requirement_has_a_change() -> None:
    rows = {name for name, row in requirements().items() if row["side"] == "decoder"}
    changes = read_changes()
    assert {change.row for change in changes} == rows
    assert [change.number for change in changes] == [*range(1, len(changes) + 1)]
    assert all(change.old and change.old != change.new for change in changes)


def test_every_change_applies_to_the_current_code() -> None:
    changes_by_file: dict[str, list[Change]] = {}
    for change in read_changes():
        changes_by_file.setdefault(change.file, []).append(change)
    for path, changes in changes_by_file.items():
        assert "crate::mutant" in with_switches((ROOT / path).read_text(), changes)


def make_change(number: int, before: str, old: str, after: str, new: str) -> Change:
    return Change(number, "ROW-001", "file.rs", before, old, after, new)


def test_switch_wraps_expressions_and_statements() -> None:
    text = "fn f() {\n    a = b;\n    if c {\n        g();\n    }\n}\n"
    changes = [make_change(1, "if ", "c", " {", "d"), make_change(2, "", "g();", "", "")]
    assert with_switches(text, changes) == (
        "fn f() {\n    a = b;\n    if (if crate::mutant(1) { d } else { c }) {\n"
        "        if crate::mutant(2) {  } else { g(); }\n    }\n}\n"
    )


def test_two_changes_of_one_expression_are_nested() -> None:
    changes = [make_change(1, "(", "c", ")", "d"), make_change(2, "f(", "c", ")", "e")]
    inner = "(if crate::mutant(1) { d } else { c })"
    assert with_switches("f(c)", changes) == f"f((if crate::mutant(2) {{ e }} else {{ {inner} }}))"


@pytest.mark.parametrize(
    "changes",
    [
        [make_change(1, "", "x", "", "")],
        [make_change(1, "", "c", "", "")],
        [make_change(1, "f(", "c", "", "d"), make_change(2, "", "f(c)", "", "g")],
    ],
    ids=["not there", "twice", "one within another"],
)
def test_missing_ambiguous_or_overlapping_change_is_an_error(changes: list[Change]) -> None:
    with pytest.raises(ValueError, match="ROW-001"):
        with_switches("f(c) c", changes)
