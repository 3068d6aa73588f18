"""Converts names of the operating system to text, and escapes text for output.

A name (of a file, a source file, a thread, a word of a command line) can have any bytes. In Python
it is a str as `os.fsdecode` makes it. If the locale is not UTF-8, all its non-ASCII bytes are
surrogates, so names are compared with names, never with text. `name_to_text` converts a name to
text, the same in any locale; `text_to_name` converts it back. Names of functions are text: UTF-8,
with U+FFFD for invalid bytes.

`similar_names_hint` completes errors about unknown names.

All output is text without control characters (`escape_control_characters`), so it cannot control a
terminal.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_SURROGATE_BASE = 0xDC00
"""`os.fsdecode` adds this to a byte that it cannot decode."""
_MAX_JSON_BYTES, _MAX_JSON_VALUES = 1 << 25, 1 << 20
_NON_ASCII = re.compile(r"[^\x00-\x7e]+")


def name_to_text(name: str) -> str:
    """Return a name, or a text with names in it, as text.

    Bytes that are UTF-8 become text in any locale; others stay as `os.fsdecode` has them.
    """
    if name.isascii():
        return name
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name  # surrogates that no bytes make: as it was given


def text_to_name(text: str) -> str:
    """Return a text as `os.fsdecode` returns its bytes. Raises UnicodeEncodeError without bytes."""
    return text if text.isascii() else os.fsdecode(text.encode("utf-8", "surrogateescape"))


def format_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON in ASCII, with names as `name_to_text` has them."""
    import json

    text = json.dumps(value, indent=indent)
    return text if "\\udc" not in text else "".join(iterate_json(value, indent))


def parse_json(data: bytes) -> Any:
    """Return the value of a JSON text.

    Raises ValueError for invalid JSON, and above a size: a value of three bytes takes a hundred in
    memory.
    """
    import json

    if len(data) > _MAX_JSON_BYTES:
        raise ValueError(f"more than {_MAX_JSON_BYTES:,} bytes of JSON")
    if sum(map(data.count, (b",", b"[", b"{"))) > _MAX_JSON_VALUES:
        raise ValueError(f"more than {_MAX_JSON_VALUES:,} values in JSON")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("JSON that is too deep") from None


def read_json_file(path: str | os.PathLike[str]) -> Any:
    """Return the value of a JSON file, as `parse_json` does. Raises OSError too."""
    with open(path, "rb") as file:  # noqa: PTH123 - a Path takes longer to import
        return parse_json(file.read(_MAX_JSON_BYTES + 1))


def iterate_json(
    value: object, indent: int | None = None, default: Callable[[Any], object] | None = None
) -> Iterator[str]:
    """Iterate over parts of `format_json`; `default` is that of `json`."""
    import json

    encoder = json.JSONEncoder(ensure_ascii=False, indent=indent, default=default)
    for part in encoder.iterencode(value):
        # a part holds complete strings
        if part.isascii() and "\x7f" not in part:
            yield part
        else:
            yield _NON_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], name_to_text(part))


def escape_control_characters(text: str, encoding: str = "utf-8") -> str:
    r"""Return a text on one line, as a stream with this encoding can print it.

    Line ends, terminal controls, other unprintable characters and undecodable bytes become `\x1b`
    or `\u202e`. A backslash stays as it is: this is for readers, and data to be parsed is JSON.
    """
    if text.isprintable() and (text.isascii() or _is_utf8(encoding)):
        return text
    text = name_to_text(text)
    shown = "".join(each if each.isprintable() else _escape_character(each) for each in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escape_character(character: str) -> str:
    number = ord(character)
    if _SURROGATE_BASE + 0x80 <= number <= _SURROGATE_BASE + 0xFF:
        return f"\\x{number - _SURROGATE_BASE:02x}"
    return character.encode("unicode_escape").decode()


def _is_utf8(encoding: str) -> bool:
    return encoding == "utf-8" or codecs.lookup(encoding).name == "utf-8"


def similar_names_hint(name: str, names: Iterable[str]) -> str:
    """Return "; similar names: ..." to append to an error, or "" if no name is similar.

    Functions with this name in C++ and Rust, such as a::name(int), come before all others.
    """
    from difflib import get_close_matches

    known = list(names)
    bare = [each for each in known if each.partition("(")[0].rpartition("::")[2] == name]
    near = sorted(bare)[:5] or get_close_matches(name, known, n=5, cutoff=0.5)
    return f"; similar names: {', '.join(near)}" if near else ""
