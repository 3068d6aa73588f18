"""Kernel symbols from a copy of /proc/kallsyms, and modules from one of /proc/modules.

A line of kallsyms has address, type, name, and [module] if the symbol is of a module.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from rtit.errors import ImageError, unreadable_image

_MAX_SIZE = 1 << 26
_CODE_TYPES = frozenset(b"tTwW")
_ADDRESS_DIGITS = 16


class Kallsym(NamedTuple):
    """A symbol. `module` is "" for the kernel itself."""

    address: int
    is_code: bool
    name: str
    module: str


def read_kallsyms(path: str | os.PathLike[str]) -> list[Kallsym]:
    """Return the symbols of a file, ordered by address, then by line.

    Raises ImageError if it is not a regular file, has more than 64 MiB, a line of another form, or
    addresses that the kernel has hidden (all 0).
    """
    name = os.fspath(path)
    data = _read_file(name)
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) < 3 or len(words[0]) > _ADDRESS_DIGITS or len(words[1]) != 1:
            raise _malformed_line_error(name, number, line)
        try:
            address = int(words[0], 16)
        except ValueError:
            raise _malformed_line_error(name, number, line) from None
        module = words[3][1:-1] if len(words) > 3 and words[3][:1] == b"[" else b""
        symbol = words[2].decode(errors="replace")
        found.append(
            Kallsym(address, words[1][0] in _CODE_TYPES, symbol, module.decode(errors="replace"))
        )
    if found and not any(each.address for each in found):
        message = "all addresses are 0: the kernel hid them (kptr_restrict)"
        raise ImageError(message, source=name)
    found.sort(key=lambda each: each.address)
    return found


def read_modules(path: str | os.PathLike[str]) -> list[tuple[str, int, int]]:
    """Return name, address and size of each module in a copy of /proc/modules.

    Raises ImageError as `read_kallsyms` does.
    """
    name = os.fspath(path)
    found = []
    for number, line in enumerate(_read_file(name).splitlines(), 1):
        words = line.split()
        try:
            size, address = int(words[1]), int(words[5], 16)
        except (ValueError, IndexError):
            message = f"line {number} is not a module with size and address"
            raise ImageError(message, source=name, value=line[:40]) from None
        if size > 0 and address:
            found.append((words[0].decode(errors="replace"), address, size))
    return found


def _read_file(name: str) -> bytes:
    try:
        status = Path(name).stat()
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("not a regular file", source=name)
        with Path(name).open("rb") as file:
            data = file.read(_MAX_SIZE + 1)
    except (OSError, ValueError) as error:
        raise unreadable_image(error, name) from error
    if len(data) > _MAX_SIZE:
        raise ImageError(f"more than {_MAX_SIZE:,} bytes of names", source=name)
    return data


def _malformed_line_error(name: str, number: int, line: bytes) -> ImageError:
    return ImageError(
        f"line {number} is not an address, a type and a name", source=name, value=line[:40]
    )
