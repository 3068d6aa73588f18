"""`unit.py` is the list of what a trace unit traces, to be read beside the chapter."""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest

from rtit.unit import TraceUnit, unit

SOURCE = Path(inspect.getsourcefile(unit) or "")
(CLASS,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.ClassDef))
LINES = [node for node in CLASS.body if isinstance(node, ast.Assign)][1:]
"""All but `__slots__`."""


def section(node: ast.Assign) -> tuple[int, ...]:
    line = SOURCE.read_text().splitlines()[node.lineno - 1]
    found = re.search(r"  # (33(?:\.\d+)+)$", line)
    assert found is not None, f"no section: {line}"
    return tuple(map(int, found.group(1).split(".")))


def test_the_events_stand_in_the_order_of_the_chapter() -> None:
    assert len(LINES) > 40
    for before, after in pairwise(LINES):
        assert section(before) <= section(after), ast.unparse(after)


@pytest.mark.parametrize("node", LINES, ids=ast.unparse)
def test_an_event_has_the_name_of_its_function(node: ast.Assign) -> None:
    assert isinstance(node.targets[0], ast.Name)
    assert isinstance(node.value, ast.Attribute)
    name = node.targets[0].id
    assert name == node.value.attr
    function = getattr(TraceUnit, name)
    assert next(iter(inspect.signature(function).parameters)) == "unit"


def test_the_unit_has_nothing_but_the_list() -> None:
    """What an event does stands in its module; a property has one line."""
    for node in CLASS.body:
        if isinstance(node, ast.FunctionDef):
            assert len(node.body) == 2, f"{node.name} does more than its docstring and a return"
