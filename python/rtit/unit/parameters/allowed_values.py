"""The sets of values that a parameter can have, and the row that declares a parameter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from textwrap import wrap
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from rtit.errors import UsageError

T = TypeVar("T")


class AllowedValues:
    """The values that a parameter can have. `words`: as texts name them."""

    words = ""

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError, with the `name` of the parameter, for a value that is not of these."""
        raise NotImplementedError


class OneOf(AllowedValues):
    """One of some names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.words = ", ".join(names)

    def check(self, name: str, value: Any) -> None:
        """See `AllowedValues`."""
        if value not in self.names:
            raise UsageError(f"{name} is one of {self.words}, not {value!r}")


class Flag(AllowedValues):
    """True or False."""

    words = "True, False"

    def check(self, name: str, value: Any) -> None:
        """See `AllowedValues`."""
        if value not in (True, False):
            raise UsageError(f"{name} is True or False, not {value!r}")


class IntegerRange(AllowedValues):
    """A number from `low` to `high`, or 0 if `or_zero`."""

    def __init__(self, low: int, high: int, *, or_zero: bool = False) -> None:
        self.low, self.high, self.or_zero = low, high, or_zero
        self.words = f"{'0, ' if or_zero else ''}{low} to {_format_number(high)}"

    def check(self, name: str, value: Any) -> None:
        """See `AllowedValues`."""
        if not self.low <= value <= self.high and not (self.or_zero and value == 0):
            zero = " or is 0" if self.or_zero else ""
            raise UsageError(f"{name} lies between {self.low} and {self.high}{zero}, not {value}")


class SubsetOf(AllowedValues):
    """Some of the names, or none."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.each = OneOf(names)
        self.words = f"any of {self.each.words}"

    def check(self, name: str, value: Any) -> None:
        """See `AllowedValues`."""
        for each in value:
            self.each.check(name, each)


class Permutation(AllowedValues):
    """All of the items, each once; the `optional` one may be missing."""

    def __init__(
        self, items: tuple[str, ...] | tuple[int, ...], *, optional: str | None = None
    ) -> None:
        self.items, self.optional = items, optional
        more = f", and {optional} or not" if optional else ""
        self.words = f"each of {_format_items(items)} once{more}"

    def check(self, name: str, value: Any) -> None:
        """See `AllowedValues`."""
        needed = [item for item in value if item != self.optional]
        if sorted(needed) != sorted(self.items) or len(value) - len(needed) > 1:
            raise UsageError(f"{name} has {self.words}, not {_format_items(value)}")


class ParameterRow(NamedTuple):
    """A parameter: its values and default, what the chapter leaves open, and the section that does.

    `group` is the heading under which it stands.
    """

    name: str
    group: str
    values: AllowedValues
    default: Any
    section: str
    reason: str


class ParameterGroup:
    """Declares the parameters of one heading, as defaults of the fields of a dataclass."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __call__(
        self, default: T, section: str, reason: str, values: AllowedValues | None = None
    ) -> T:
        """A field. `values` follow from the annotation if that says them all (Literal, bool)."""
        about = {"group": self.title, "section": section, "reason": reason, "values": values}
        declared: T = field(default=default, metadata=about)
        return declared


def allowed_by_annotation(annotation: Any) -> AllowedValues:
    """The values that an annotation says. TypeError if it does not."""
    if annotation is bool:
        return Flag()
    if get_origin(annotation) is Literal:
        return OneOf(get_args(annotation))
    raise TypeError(f"{annotation} does not say its values")


def format_default(value: Any) -> str:
    """A default in words."""
    return (_format_items(value) or "none") if isinstance(value, tuple) else str(value)


def format_docstring(rows: Iterable[ParameterRow]) -> str:
    """The rows as a part of a docstring: a line each, with the reason below it."""
    lines = []
    for row in rows:
        lines.append(f"    {row.name}: {row.values.words}; default {format_default(row.default)};")
        lines[-1] += f" {row.section}"
        lines += wrap(row.reason, 92, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join([*lines, ""])


def _format_items(items: Iterable[Any]) -> str:
    return ", ".join(f"{item:#x}" if isinstance(item, int) else str(item) for item in items)


def _format_number(number: int) -> str:
    """2^32 is easier to read than its digits."""
    exact = number >= 1 << 16 and not number & (number - 1)
    return f"2^{number.bit_length() - 1}" if exact else str(number)
