"""The mutations of `make mutants` change what they say, and nothing else."""

from __future__ import annotations

import ast

import pytest

from mutants.mutation import Mutation, mutated, mutations

SOURCE = '''
class Counter:
    limit: int = 3

    def count(self, by: int = 1) -> bool:
        """Say whether there is room for 2."""
        if self.value < self.limit and not self.closed:
            self.note(True)
        self.value += by << 4
        return self.value in (7, 8)

    def __str__(self) -> str:
        return "a" + "b"
'''


def test_every_mutation_of_a_function() -> None:
    found = [(each.function, each.kind, each.text) for each in mutations("m", SOURCE)]
    condition = "self.value < self.limit and (not self.closed)"
    assert found == [
        ("Counter.count", "negate", f"if {condition}:"),
        ("Counter.count", "swap", condition),
        ("Counter.count", "swap", "self.value < self.limit"),
        ("Counter.count", "drop not", "not self.closed"),
        ("Counter.count", "drop call", "self.note(True)"),
        ("Counter.count", "flip", "True"),
        ("Counter.count", "swap", "self.value += by << 4"),
        ("Counter.count", "swap", "by << 4"),
        ("Counter.count", "add one", "4"),
        ("Counter.count", "swap", "self.value in (7, 8)"),
        ("Counter.count", "add one", "7"),
        ("Counter.count", "add one", "8"),
    ]


@pytest.mark.parametrize(
    ("text", "kind", "before", "after"),
    [
        ("self.value < self.limit", "swap", "self.value <", "self.value <="),
        ("not self.closed", "drop not", "(not self.closed)", "self.closed"),
        ("self.note(True)", "drop call", "self.note(True)", "pass"),
        ("True", "flip", "note(True)", "note(False)"),
        ("self.value += by << 4", "swap", "+=", "-="),
        ("8", "add one", "8)", "9)"),
    ],
)
def test_one_place_changes(text: str, kind: str, before: str, after: str) -> None:
    (mutation,) = [
        each for each in mutations("m", SOURCE) if (each.text, each.kind) == (text, kind)
    ]
    plain = ast.unparse(ast.parse(SOURCE))
    assert plain.count(before) == 1
    assert ast.unparse(mutated(mutation, SOURCE)) == plain.replace(before, after)


def test_those_that_look_alike_have_names_of_their_own() -> None:
    source = "def f(a):\n    a.go()\n    a.go()\n"
    first, second = mutations("m", source)
    assert [first.name, second.name] == ["m:f: drop call: a.go()", "m:f: drop call: a.go() (2)"]
    assert ast.unparse(mutated(second, source)) == "def f(a):\n    a.go()\n    pass"


def test_a_mutation_of_other_code_is_refused() -> None:
    with pytest.raises(ValueError, match="no such place"):
        mutated(Mutation("m", "f", "swap", "a < b", 1, 0), SOURCE)
