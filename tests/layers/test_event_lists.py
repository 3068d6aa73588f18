"""The events of a trace unit and of a processor are lists in the order of the chapter."""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest

from rtit.processor import Processor
from rtit.unit.trace_unit import TraceUnit

FIRST_PARAMETERS = {TraceUnit: "unit", Processor: "cpu"}
"""Name of the first parameter of its functions, by class."""


def class_definition(cls: type) -> ast.ClassDef:
    body = ast.parse(Path(inspect.getsourcefile(cls) or "").read_text()).body
    (found,) = (node for node in body if isinstance(node, ast.ClassDef))
    assert found.name == cls.__name__
    return found


def listed_events(cls: type) -> list[ast.Assign]:
    lines = [node for node in class_definition(cls).body if isinstance(node, ast.Assign)]
    assert ast.unparse(lines[0]) == "__slots__ = ()"
    return lines[1:]


def section_of(cls: type, node: ast.Assign) -> tuple[int, ...]:
    line = inspect.getsource(inspect.getmodule(cls) or cls).splitlines()[node.lineno - 1]
    found = re.search(r"  # (33(?:\.\d+)+)$", line)
    assert found is not None, f"no section: {line}"
    return tuple(map(int, found.group(1).split(".")))


@pytest.mark.parametrize("cls", FIRST_PARAMETERS)
def test_events_are_in_the_order_of_the_chapter(cls: type) -> None:
    assert len(listed_events(cls)) > 40
    for before, after in pairwise(listed_events(cls)):
        assert section_of(cls, before) <= section_of(cls, after), ast.unparse(after)


@pytest.mark.parametrize("cls", FIRST_PARAMETERS)
def test_event_has_the_name_of_its_function(cls: type) -> None:
    for node in listed_events(cls):
        assert isinstance(node.targets[0], ast.Name)
        assert isinstance(node.value, ast.Attribute)
        name = node.targets[0].id
        assert name == node.value.attr
        assert (
            next(iter(inspect.signature(getattr(cls, name)).parameters)) == FIRST_PARAMETERS[cls]
        ), name


@pytest.mark.parametrize("cls", FIRST_PARAMETERS)
def test_class_of_events_has_only_one_line_properties(cls: type) -> None:
    """The modules of the events implement them."""
    for node in class_definition(cls).body:
        if isinstance(node, ast.FunctionDef):
            assert len(node.body) == 2, f"{node.name} is more than a docstring and a return"
