"""Names, which may bear any bytes, as text: what is shown obeys no terminal, what is written is the
same in any locale.

A name of the operating system (a file, one of source, too, a thread, a word of a command line) is
a str as `os.fsdecode` makes it, in native code bytes. Where the locale is not UTF-8 all that is not
ASCII in it is surrogates, so that such names are compared with each other, never with text.

Names of functions are text: UTF-8 in any locale, with U+FFFD for bytes that are not. `as_text` is
the way from a name to text, as all that is shown or written is, `as_name` the way back.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

_ESCAPED = 0xDC00
"""`os.fsdecode` adds this to a byte that is no text."""
_LARGEST_JSON, _MOST_IN_JSON = 1 << 25, 1 << 20
_ESCAPED_IN_JSON = re.compile(r"[^\x00-\x7e]+")


def as_text(name: str) -> str:
    """A name, or what names are part of: what of its bytes is UTF-8 is text, in any locale. Others
    stay as `os.fsdecode` has them.
    """
    if name.isascii():
        return name
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name  # surrogates that no bytes make: as it was given


def as_name(text: str) -> str:
    """What `os.fsdecode` makes of the bytes of a text. Raises UnicodeEncodeError if it has none."""
    return text if text.isascii() else os.fsdecode(text.encode("utf-8", "surrogateescape"))


def json_text(value: object, indent: int | None = None) -> str:
    """A JSON value in ASCII, its names as `as_text` has them."""
    import json

    text = json.dumps(value, indent=indent)
    return text if "\\udc" not in text else "".join(json_parts(value, indent))


def json_value(data: bytes) -> Any:
    """The value that JSON text has. Raises ValueError for what is no JSON, and for what is too much
    of it: a value of three bytes takes a hundred in memory.
    """
    import json

    if len(data) > _LARGEST_JSON:
        raise ValueError(f"more than {_LARGEST_JSON:,} bytes of JSON")
    if sum(map(data.count, (b",", b"[", b"{"))) > _MOST_IN_JSON:
        raise ValueError(f"more than {_MOST_IN_JSON:,} values in JSON")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("JSON that is too deep") from None


def json_of_file(path: str | os.PathLike[str]) -> Any:
    """As `json_value`, of a file. Raises OSError, too."""
    with open(path, "rb") as file:  # noqa: PTH123 - a Path takes longer to import
        return json_value(file.read(_LARGEST_JSON + 1))


def json_parts(
    value: object, indent: int | None = None, default: Callable[[Any], object] | None = None
) -> Iterator[str]:
    """As `json_text`, while it is made; `default` as in `json`."""
    import json

    encoder = json.JSONEncoder(ensure_ascii=False, indent=indent, default=default)
    for part in encoder.iterencode(value):
        # a part has whole strings
        if part.isascii() and "\x7f" not in part:
            yield part
        else:
            yield _ESCAPED_IN_JSON.sub(lambda found: json.dumps(found[0])[1:-1], as_text(part))


def readable(text: str, encoding: str = "utf-8") -> str:
    r"""`text` on one line, as a stream of this encoding can print it: other characters, among them
    line ends, all that control a terminal and bytes that are no text, as `\x1b` or `\u202e`.

    A backslash stays as it is: this is for people, and what is to be read back is JSON.
    """
    if text.isprintable() and (text.isascii() or _takes_all(encoding)):
        return text
    text = as_text(text)
    shown = "".join(each if each.isprintable() else _escape(each) for each in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escape(character: str) -> str:
    number = ord(character)
    if _ESCAPED + 0x80 <= number <= _ESCAPED + 0xFF:
        return f"\\x{number - _ESCAPED:02x}"
    return character.encode("unicode_escape").decode()


def _takes_all(encoding: str) -> bool:
    return encoding == "utf-8" or codecs.lookup(encoding).name == "utf-8"
