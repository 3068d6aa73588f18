"""A mutation of Rust code changes what its name says, and nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from mutants.run_rust import all_mutations
from mutants.rust_mutation import edits

SOURCE = """
impl Counter {
    /// Whether there is room for 2, or not.
    fn count(&mut self, by: u64) -> bool {
        let text = "true && 1";
        if self.value < LIMIT && !self.closed || by == 1 {
            self.note(true);
            self.seen = by;
        }
        if let Some(other) = self.other {
            other.count(by)?;
        }
        self.value += by << 4;
        self.run(|each| each.ready && by > 0x10)
    }
}

#[cfg(test)]
mod tests {
    fn nothing() -> u64 {
        7
    }
}
"""
CONDITION = "if self.value < LIMIT && !self.closed || by == 1 {"
LAST = "self.run(|each| each.ready && by > 0x10)"


def mutated_lines(kind: str, text: str) -> list[str]:
    """Return the line after each mutation."""
    index = SOURCE[: SOURCE.index(text)].count("\n")
    return [
        edit.applied(SOURCE).splitlines()[index].strip()
        for edit in edits("m.rs", SOURCE)
        if (edit.mutation.kind, edit.mutation.text) == (kind, text)
    ]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (
            "swap",
            CONDITION,
            [
                CONDITION.replace("<", "<="),
                CONDITION.replace("&&", "||"),
                CONDITION.replace("||", "&&"),
                CONDITION.replace("==", "!="),
            ],
        ),
        ("drop operand 1", CONDITION, ["if !self.closed || by == 1 {", "if by == 1 {"]),
        (
            "drop operand 2",
            CONDITION,
            ["if self.value < LIMIT || by == 1 {", "if self.value < LIMIT && !self.closed {"],
        ),
        ("drop not", CONDITION, [CONDITION.replace("!", "")]),
        ("negate", CONDITION, ["if !(self.value < LIMIT && !self.closed || by == 1) {"]),
        ("add one", CONDITION, [CONDITION.replace("1", "(1 + 1)")]),
        ("flip", "self.note(true);", ["self.note(false);"]),
        ("drop call", "self.note(true);", [""]),
        ("drop call", "other.count(by)?;", [""]),
        ("swap statements", "self.note(true);", ["self.seen = by;"]),
        ("drop assignment", "self.seen = by;", [""]),
        ("drop assignment", "self.value += by << 4;", [""]),
        ("swap", "self.value += by << 4;", ["self.value -= by << 4;", "self.value += by >> 4;"]),
        ("drop operand 1", LAST, ["self.run(|each| by > 0x10)"]),
        ("drop operand 2", LAST, ["self.run(|each| each.ready)"]),
        ("add one", LAST, ["self.run(|each| each.ready && by > (0x10 + 1))"]),
    ],
)
def test_mutation_changes_one_place(kind: str, text: str, expected: list[str]) -> None:
    assert mutated_lines(kind, text) == expected


def test_comments_strings_and_unit_tests_are_not_mutated() -> None:
    texts = {edit.mutation.text for edit in edits("m.rs", SOURCE)}
    assert texts == {
        CONDITION,
        "self.note(true);",
        "self.seen = by;",
        "other.count(by)?;",
        "self.value += by << 4;",
        LAST,
    }
    assert {edit.mutation.function for edit in edits("m.rs", SOURCE)} == {"count"}


def test_the_trace_unit_has_mutations_of_all_kinds() -> None:
    found = all_mutations()
    kinds = Counter(edit.mutation.kind for edit in found)
    assert kinds.keys() == {
        *("swap", "negate", "flip", "add one", "drop not", "drop call", "drop assignment"),
        *("drop operand 1", "drop operand 2", "swap statements"),
    }
    assert len({edit.mutation.name for edit in found}) == len(found)
