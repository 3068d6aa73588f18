"""Public names of a module that are neither class nor function, which autodoc leaves out."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType


def describe_constants(module: ModuleType) -> dict[str, str]:
    """Return the description of each constant in `module.__all__`, by name.

    The description is the string after the assignment, in the module that assigns the constant;
    without one it is the value.
    """
    found = {}
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
            found[name] = _find_description(name, value) or f"`{_show(value)}`"
    return found


def _find_description(name: str, value: object) -> str | None:
    for each in list(sys.modules.values()):
        path = getattr(each, "__file__", None) or ""
        if "rtit" in path and path.endswith(".py") and vars(each).get(name) is value:
            description = _described(path).get(name)
            if description is not None:
                return description
    return None


@cache
def _described(path: str) -> dict[str, str]:
    """Return the strings after assignments of a file, by name."""
    found = {}
    for statement, following in pairwise(ast.parse(Path(path).read_text()).body):
        if (
            isinstance(statement, ast.Assign | ast.AnnAssign)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found.update(dict.fromkeys(names, inspect.cleandoc(str(following.value.value))))
    return found


def _show(value: object) -> str:
    text = hex(value) if type(value) is int else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
