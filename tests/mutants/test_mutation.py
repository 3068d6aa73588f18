"""A mutation changes what its name says, and nothing else."""

from __future__ import annotations

import ast

import pytest

from mutants.mutation import Mutation, effects, mutated, mutations

SOURCE = '''
class Counter:
    limit: int = 3

    def count(self, by: int = 1) -> bool:
        """Say whether there is room for 2."""
        if self.value < self.limit and not self.closed:
            self.note(True)
            self.seen = by
        self.value += by << 4
        return self.value in (7, 8)

    def note(self, flag: bool) -> None:
        self.seen = flag

    def __str__(self) -> str:
        return "a" + "b"
'''

CONDITION = "self.value < self.limit and (not self.closed)"


def test_mutations_lists_every_kind_in_order() -> None:
    found = [(each.function, each.kind, each.text) for each in mutations("m", SOURCE)]
    assert found == [
        ("Counter.count", "negate", f"if {CONDITION}:"),
        ("Counter.count", "swap statements", "self.note(True)"),
        ("Counter.count", "drop operand 1", CONDITION),
        ("Counter.count", "drop operand 2", CONDITION),
        ("Counter.count", "swap", CONDITION),
        ("Counter.count", "swap", "self.value < self.limit"),
        ("Counter.count", "drop not", "not self.closed"),
        ("Counter.count", "drop call", "self.note(True)"),
        ("Counter.count", "flip", "True"),
        ("Counter.count", "drop assignment", "self.seen = by"),
        ("Counter.count", "drop assignment", "self.value += by << 4"),
        ("Counter.count", "swap", "self.value += by << 4"),
        ("Counter.count", "swap", "by << 4"),
        ("Counter.count", "add one", "4"),
        ("Counter.count", "swap", "self.value in (7, 8)"),
        ("Counter.count", "add one", "7"),
        ("Counter.count", "add one", "8"),
        ("Counter.note", "drop assignment", "self.seen = flag"),
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
        ("self.value += by << 4", "drop assignment", "self.value += by << 4", "pass"),
        ("self.seen = by", "drop assignment", "self.seen = by", "pass"),
        (CONDITION, "drop operand 1", CONDITION, "not self.closed"),
        (CONDITION, "drop operand 2", CONDITION, "self.value < self.limit"),
        (
            "self.note(True)",
            "swap statements",
            "self.note(True)\n            self.seen = by",
            "self.seen = by\n            self.note(True)",
        ),
    ],
)
def test_mutation_changes_one_place(text: str, kind: str, before: str, after: str) -> None:
    (mutation,) = [
        each for each in mutations("m", SOURCE) if (each.text, each.kind) == (text, kind)
    ]
    plain = ast.unparse(ast.parse(SOURCE))
    assert plain.count(before) == 1
    assert ast.unparse(mutated(mutation, SOURCE)) == plain.replace(before, after)


def test_equal_statements_get_numbered_names() -> None:
    source = "def f(a):\n    a.go()\n    a.go()\n"
    first, second = mutations("m", source)
    assert [first.name, second.name] == ["m:f: drop call: a.go()", "m:f: drop call: a.go() (2)"]
    assert ast.unparse(mutated(second, source)) == "def f(a):\n    a.go()\n    pass"


def test_mutation_of_other_code_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such place"):
        mutated(Mutation("m", "f", "swap", "a < b", 1, 0), SOURCE)


FUNCTIONS = """
def stop(unit): unit.sent = 0
def send(unit): stop(unit)
def find(unit): return unit.b
def steer(unit): unit.put()
"""


def mutated_texts(body: str, kind: str) -> list[str]:
    """Return the texts of mutations of one kind in a function, which may call `FUNCTIONS`."""
    source = "def f(unit, mode):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    found = mutations("m", source, effects([FUNCTIONS, source]))
    return [each.text for each in found if each.kind == kind]


def test_first_assignment_of_a_name_is_kept() -> None:
    body = "a = unit.a\nmode = a\na = 2\nunit.b, c = 3, 4\nunit.d, a = 5, 6"
    assert mutated_texts(body, "drop assignment") == ["mode = a", "a = 2", "unit.d, a = (5, 6)"]


@pytest.mark.parametrize(
    ("body", "swapped"),
    [
        ("was = unit.sent\nstops = send(unit)", True),
        ("unit.b = 1\nmode = find(unit)", True),
        ("unit.a = 1\nmode = unit.a", True),
        ("stop(unit)\nsend(unit)", True),
        ("unit.put(1)\nunit.put(2)", True),
        ("steer(unit)\nunit.put(2)", True),
        ("require(mode)\nstop(unit)", True),
        ("require(mode)\nunit.a = 1", True),
        ("unit.a = 1\nunit.b = 2", False),
        ("unit.a = 1\nsend(unit)", False),
        ("unit.a = 1\nmode = find(unit)", False),
        ("was = unit.a\nis_ = unit.b", False),
        ("a = find(unit)\nsend(a)", False),
        ("require(mode)\naddresses(mode)", False),
        ("require(mode)\na = find(unit)", False),
        ("send(unit)\nsend(unit)", False),
        ("send(unit)\nreturn", False),
    ],
)
def test_statements_are_swapped_only_if_their_order_may_matter(body: str, swapped: bool) -> None:
    assert bool(mutated_texts(body, "swap statements")) is swapped
