"""Hexadecimal numbers in the text of a dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any


def hexadecimal_repr(*names: str) -> Callable[[Any], str]:
    """Return a `__repr__` for a dataclass that shows the fields `names` in hexadecimal."""

    def text(self: Any) -> str:
        values = ((row.name, getattr(self, row.name)) for row in fields(self))
        shown = (f"{name}={_hexadecimal(it) if name in names else repr(it)}" for name, it in values)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    return text


def _hexadecimal(value: Any) -> str:
    if type(value) is tuple:
        inner = ", ".join(map(_hexadecimal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return f"{value:#x}" if isinstance(value, int) else repr(value)
