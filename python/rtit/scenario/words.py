"""The words of a scenario as values: numbers, truth values, names, lists of them.

A kind is a function that takes a word and gives its value, or raises ValueError with half a
sentence that says what is wrong with the word.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Literal, Union, get_args, get_origin

from rtit.registers import Msr

Kind = Callable[[str], Any]

_LONGEST = 100
"""Characters of a number; beyond that it only takes time."""


def hint(word: str, names: Iterable[str]) -> str:
    """What may have been meant, or the valid names if they are few; after `;`, or ""."""
    valid = sorted(names)
    near = difflib.get_close_matches(word, valid, n=3, cutoff=0.6) or [
        name for name in valid if name.lower() == word.lower()
    ]
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; valid: {', '.join(valid)}" if 0 < len(valid) <= 24 else ""


def integer(word: str) -> int:
    """A number of at most 64 bits, negative or not: 12, -3, 0x1f, 0b11."""
    try:
        value = int(word, 0) if len(word) <= _LONGEST else None
    except ValueError:
        value = None
    if value is None:
        raise ValueError(f"{_cut(word)!r} is no number: write 12, 0x1f or 0b101")
    if value >> 64 not in (0, -1):
        raise ValueError(f"{_cut(word)} does not fit in 64 bits")
    return value


def number(word: str) -> int:
    """A number of at most 64 bits that is not negative."""
    value = integer(word)
    if value < 0:
        raise ValueError(f"{word} is negative")
    return value


def truth(word: str) -> bool:
    """True, False, 1 or 0."""
    values = {"True": True, "1": True, "False": False, "0": False}
    if word not in values:
        raise ValueError(f"{_cut(word)!r} is no truth value: write True or False")
    return values[word]


def text(word: str) -> str:
    """Any word."""
    return word


def msr(word: str) -> int:
    """An MSR: CTL, IA32_RTIT_CTL, or any address."""
    name = word.removeprefix("IA32_RTIT_")
    if name in Msr.__members__:
        return Msr[name]
    if not word[:1].isdigit():
        raise ValueError(f"there is no MSR {_cut(word)!r}{hint(name, Msr.__members__)}")
    return number(word)


def loads(word: str) -> tuple[tuple[int, int], ...]:
    """An MSR-load area: CTL:0x2009,STATUS:0."""
    pairs = [part.partition(":") for part in word.split(",")]
    if not all(colon for _, colon, _ in pairs):
        raise ValueError(f"{_cut(word)!r} is no list of MSR:VALUE")
    return tuple((msr(name), number(value)) for name, _, value in pairs)


def choice(names: Iterable[str]) -> Kind:
    """One of some names."""
    valid = tuple(names)

    def parse(word: str) -> str:
        if word not in valid:
            raise ValueError(f"{_cut(word)!r} is none of {', '.join(valid)}{near(word, valid)}")
        return word

    return parse


def near(word: str, valid: Iterable[str]) -> str:
    """The one name that is like `word`, as `; did you mean NAME?`; else nothing."""
    found = difflib.get_close_matches(word, list(valid), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def listed(kind: Kind) -> Kind:
    """Words of one kind, with commas between them."""

    def parse(word: str) -> tuple[Any, ...]:
        return tuple(kind(part) for part in word.split(","))

    return parse


def kind_of(hint_: Any) -> Kind | None:
    """The kind for a type annotation; None if no word can stand for its values."""
    plain: dict[Any, Kind] = {int: number, bool: truth, str: text}
    if hint_ in plain:
        return plain[hint_]
    if isinstance(hint_, type) and issubclass(hint_, IntEnum):
        return number
    origin, arguments = get_origin(hint_), get_args(hint_)
    if origin is Literal and all(isinstance(each, str) for each in arguments):
        return choice(arguments)
    if origin in (Union, types.UnionType):
        (*some,) = (each for each in arguments if each is not type(None))
        return kind_of(some[0]) if len(some) == 1 else None
    if origin in (tuple, frozenset) and arguments:
        inner = kind_of(arguments[0])
        if inner is not None and (origin is frozenset or arguments[1:] == (Ellipsis,)):
            return listed(inner)
    return None


def assign(words: Iterable[str], kinds: Mapping[str, Kind], what: str) -> dict[str, Any]:
    """NAME=VALUE words as values; a NAME alone stands for 1. ValueError for what is not in `kinds`,
    or twice.
    """
    values: dict[str, Any] = {}
    for word in words:
        name, equals, content = word.partition("=")
        if name not in kinds:
            raise ValueError(f"{what} has no {_cut(name)!r}{hint(name, kinds)}")
        if name in values:
            raise ValueError(f"{name} is given twice")
        try:
            values[name] = kinds[name](content if equals else "1")
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return values


def _cut(word: str) -> str:
    return word if len(word) <= 40 else f"{word[:37]}..."
