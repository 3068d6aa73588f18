"""Sizes as perf's options spell them: a number and a unit."""

from __future__ import annotations

import re

from rtit.errors import UsageError

_SIZE = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)([BKMG]?)", re.IGNORECASE)
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MAX_SIZE = 1 << 62


def parse_size(text: str, what: str = "a size") -> int:
    """Bytes from `4096`, `512K`, `4M` or `1G`; `what` is the option, for the error.

    Units are powers of 1024, in upper or lower case, as in perf. Raises UsageError for anything
    else, for 0, and for 2**62 bytes or more.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{what} is a number and B, K, M or G, for example 4M, not {text!r}")
    size = int(match[1], 16 if match[1][:2] in ("0x", "0X") else 10) * _UNITS[match[2].upper()]
    if not 0 < size < _MAX_SIZE:
        raise UsageError(f"{what} is more than nothing and less than 4 EiB, not {text!r}")
    return size


def format_size(size: int) -> str:
    """The shortest text that `parse_size` turns back into `size`."""
    for unit in ("G", "M", "K"):
        if size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)
