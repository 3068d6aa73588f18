"""Code that a program made while it ran, as it told: jitdump files, and perf's maps of names.

A jitdump (`jit-PID.dump`; tools/perf/Documentation/jitdump-specification.txt of Linux) has the code
itself with times; a map (`perf-PID.map`) has addresses, sizes and names alone.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rtit.errors import ImageError
from rtit.image.mappings import UPPER

_HEADER = struct.Struct("<IIIIIIQQ")
_RECORD = struct.Struct("<IIQ")
_LOAD = struct.Struct("<IIQQQQ")
_MOVE = struct.Struct("<IIQQQQQ")
_MAGIC = 0x4A695444
_ARCH_TIMESTAMP = 1
_CODE_LOAD, _CODE_MOVE = 0, 1
_MOST = 1 << 28
_MOST_FILES = 1 << 10
DUMP = re.compile(r"jit-([0-9]{1,10})\.dump")
MAP = re.compile(r"perf-([0-9]{1,10})\.map")


class Load(NamedTuple):
    """From `time` on `code` is at `address` and is called `name`."""

    time: int
    address: int
    code: bytes
    name: str


@dataclass(frozen=True, slots=True)
class JitDump:
    """The code of a process in order of the file; `cut` says why it ends early, None if it does
    not. Times are TSC ticks with `in_ticks`, else nanoseconds of CLOCK_MONOTONIC.
    """

    path: str
    pid: int
    in_ticks: bool
    loads: list[Load]
    cut: str | None = None


def files_in(places: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The jitdump files and maps among some files and in some folders, by their names; regular
    files alone. Raises ImageError for a place that is neither.
    """
    found: dict[str, None] = {}
    for place in places:
        path = Path(place)
        if path.is_dir():
            try:
                there = sorted(each.name for each in path.iterdir())
            except OSError as error:
                raise ImageError(f"cannot be read: {error.strerror}", source=str(path)) from error
            names = [name for kind in (DUMP, MAP) for name in there if kind.fullmatch(name)]
            for name in names[:_MOST_FILES]:
                if (path / name).is_file():
                    found[os.fspath(path / name)] = None
        elif path.is_file() and (DUMP.fullmatch(path.name) or MAP.fullmatch(path.name)):
            found[os.fspath(path)] = None
        else:
            message = "no folder, and no regular file called jit-PID.dump or perf-PID.map"
            raise ImageError(message, source=os.fspath(place))
    return list(found)


def read_jitdump(path: str, name: str | None = None) -> JitDump:
    """A whole file, which is called `name` in errors. Raises ImageError for what is none; of one
    that is cut all that is whole.
    """
    data, source = _read(path, name), name or path
    if len(data) < _HEADER.size:
        raise ImageError("too short for a jitdump", source=source, offset=0, value=len(data))
    magic, version, size, _, _, pid, _, flags = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != 1:
        raise ImageError("no jitdump of version 1", source=source, offset=0, value=magic)
    loads: list[Load] = []
    codes: dict[int, Load] = {}
    at, cut = max(size, _HEADER.size), None
    while at < len(data):
        if at + _RECORD.size > len(data):
            cut = f"the file ends at {len(data):#x}, within a record"
            break
        kind, length, time = _RECORD.unpack_from(data, at)
        if not _RECORD.size <= length <= len(data) - at:
            cut = f"bad size {length} of the record at {at:#x}"
            break
        body = data[at + _RECORD.size : at + length]
        if kind == _CODE_LOAD:
            load = _load(time, body)
            if load is not None:
                loads.append(load)
                codes[load.address] = load
        elif kind == _CODE_MOVE and len(body) >= _MOVE.size:
            *_, old, new, _, _ = _MOVE.unpack_from(body)
            moved = codes.pop(old, None)
            if moved is not None and new < UPPER - len(moved.code):
                codes[new] = moved._replace(time=time, address=new)
                loads.append(codes[new])
        at += length
    return JitDump(path, pid, bool(flags & _ARCH_TIMESTAMP), loads, cut)


def _load(time: int, body: bytes) -> Load | None:
    if len(body) < _LOAD.size:
        return None
    *_, address, size, _ = _LOAD.unpack_from(body)
    end = body.find(b"\0", _LOAD.size)
    if end < 0 or not 0 < size <= len(body) - end - 1 or address >= UPPER - size:
        return None
    name = body[_LOAD.size : end].decode(errors="replace")
    return Load(time, address, body[end + 1 : end + 1 + size], name)


def read_map(path: str, name: str | None = None) -> Iterator[tuple[int, int, str]]:
    """(address, size, name) of each line that has them. Raises ImageError, which calls the file
    `name`.
    """
    for line in _read(path, name).splitlines():
        words = line.split(None, 2)
        try:
            address, size = int(words[0], 16), int(words[1], 16)
            function = words[2]
        except (ValueError, IndexError):
            continue
        if size > 0 and 0 <= address < UPPER - size:
            yield address, size, function.decode(errors="replace")


def _read(path: str, name: str | None) -> bytes:
    source = name or path
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ImageError("not a regular file", source=source)
        with Path(path).open("rb") as file:
            data = file.read(_MOST + 1)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror}", source=source) from error
    if len(data) > _MOST:
        raise ImageError(f"more than {_MOST:,} bytes of code", source=source)
    return data
