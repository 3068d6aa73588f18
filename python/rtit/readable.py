"""Text as it can be shown: what is recorded may bear any bytes, and no terminal is to obey them."""

from __future__ import annotations

import codecs

_ESCAPED = 0xDC00
"""`os.fsdecode` adds this to a byte that is no text."""


def readable(text: str, encoding: str = "utf-8") -> str:
    r"""`text` on one line, as a stream of this encoding can print it: other characters, among them
    line ends, all that control a terminal and bytes that are no text, as `\x1b` or `\u202e`.

    A backslash stays as it is: this is for people, and what is to be read back is JSON.
    """
    if text.isprintable() and (text.isascii() or _takes_all(encoding)):
        return text
    shown = "".join(each if each.isprintable() else _escape(each) for each in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escape(character: str) -> str:
    number = ord(character)
    if _ESCAPED + 0x80 <= number <= _ESCAPED + 0xFF:
        return f"\\x{number - _ESCAPED:02x}"
    return character.encode("unicode_escape").decode()


def _takes_all(encoding: str) -> bool:
    return encoding == "utf-8" or codecs.lookup(encoding).name == "utf-8"
