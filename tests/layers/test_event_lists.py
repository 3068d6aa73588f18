"""The events of a trace unit and of a processor are lists, to be read beside the chapter."""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest

from rtit.processor import Processor
from rtit.unit.trace_unit import TraceUnit

LISTS = {TraceUnit: "unit", Processor: "cpu"}
"""Class: how its functions call their first parameter."""


def parsed(of: type) -> ast.ClassDef:
    body = ast.parse(Path(inspect.getsourcefile(of) or "").read_text()).body
    (found,) = (node for node in body if isinstance(node, ast.ClassDef))
    assert found.name == of.__name__
    return found


def events(of: type) -> list[ast.Assign]:
    lines = [node for node in parsed(of).body if isinstance(node, ast.Assign)]
    assert ast.unparse(lines[0]) == "__slots__ = ()"
    return lines[1:]


def section(of: type, node: ast.Assign) -> tuple[int, ...]:
    line = inspect.getsource(inspect.getmodule(of) or of).splitlines()[node.lineno - 1]
    found = re.search(r"  # (33(?:\.\d+)+)$", line)
    assert found is not None, f"no section: {line}"
    return tuple(map(int, found.group(1).split(".")))


@pytest.mark.parametrize("of", LISTS)
def test_the_events_stand_in_the_order_of_the_chapter(of: type) -> None:
    assert len(events(of)) > 40
    for before, after in pairwise(events(of)):
        assert section(of, before) <= section(of, after), ast.unparse(after)


@pytest.mark.parametrize("of", LISTS)
def test_an_event_has_the_name_of_its_function(of: type) -> None:
    for node in events(of):
        assert isinstance(node.targets[0], ast.Name)
        assert isinstance(node.value, ast.Attribute)
        name = node.targets[0].id
        assert name == node.value.attr
        assert next(iter(inspect.signature(getattr(of, name)).parameters)) == LISTS[of], name


@pytest.mark.parametrize("of", LISTS)
def test_what_an_event_does_stands_in_its_module(of: type) -> None:
    """Besides the list there are properties of one line."""
    for node in parsed(of).body:
        if isinstance(node, ast.FunctionDef):
            assert len(node.body) == 2, f"{node.name} is more than a docstring and a return"
