"""The one way out of every verb: a line at a time, of nothing but text."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import TextIO

from rtit.readable import json_parts, json_text, readable


def line(text: str = "", *, to: TextIO | None = None) -> None:
    """One line to standard output, or to another stream of text."""
    stream = sys.stdout if to is None else to
    stream.write(readable(text, stream.encoding or "utf-8") + "\n")


def complain(verb: str, text: str) -> None:
    """One line to standard error: what verb it is that says so, and what."""
    line(f"rtit {verb}: {text}", to=sys.stderr)


def document(value: object, *, indent: int | None = None) -> None:
    """One JSON value to standard output. It is ASCII: names that are no text have their bytes as
    U+DC80 to U+DCFF, as in Python. An indented one is written as it is made, and other collections
    in it are told as lists.
    """
    if indent is None:
        sys.stdout.write(json_text(value) + "\n")
        return
    sys.stdout.writelines(json_parts(value, indent, _Walked))
    sys.stdout.write("\n")


class _Walked(list[object]):
    """Has nothing in it, for an encoder that asks a list whether there is something, and iterates:
    that of `iterencode` does.
    """

    def __init__(self, items: Collection[object]) -> None:
        super().__init__()
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[object]:
        return iter(self._items)


def listed(text: bytes) -> None:
    """Whole lines of UTF-8 from native code, which has escaped the names in them."""
    stream = sys.stdout
    if not text.isascii() and (stream.encoding or "utf-8").lower() != "utf-8":
        text = text.decode().encode(stream.encoding, "backslashreplace")
    stream.flush()
    stream.buffer.write(text)


def octets(parts: Iterable[bytes]) -> None:
    """What is no text for people: a file that another tool reads."""
    flush()
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


def flush() -> None:
    """What was said is to be there before what others say."""
    sys.stdout.flush()


def give_up() -> None:
    """What cannot be written is not tried again when the interpreter ends."""
    try:
        flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
