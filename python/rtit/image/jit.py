"""Code that a program made while it ran, as it told: jitdump files, and perf's maps of names.

A jitdump (`jit-PID.dump`; tools/perf/Documentation/jitdump-specification.txt of Linux) has the code
itself with times; a map (`perf-PID.map`) has addresses, sizes and names alone. Of a dump places are
kept, not code: it may be large.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import weakref
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rtit.errors import ImageError, unreadable_image
from rtit.image.mappings import UPPER

_HEADER = struct.Struct("<IIIIIIQQ")
_RECORD = struct.Struct("<IIQ")
_LOAD = struct.Struct("<IIQQQQ")
_MOVE = struct.Struct("<IIQQQQQ")
_MAGIC = 0x4A695444
_ARCH_TIMESTAMP = 1
_CODE_LOAD, _CODE_MOVE = 0, 1
MOST_FUNCTIONS = 1 << 18
"""Each takes some hundred bytes of memory, and the file that tells of it sixty."""
_MOST_RECORDS = 1 << 22
_MOST_NAME, _LONGEST_NAME = 1 << 10, 1 << 16
"""So many bytes of a name are kept, and read."""
_LARGEST_MAP = 1 << 26
_FUNCTION = re.compile(
    rb"^[ \t]*(?:0x)?([0-9a-f]{1,16})[ \t]+(?:0x)?([0-9a-f]{1,16})[ \t]+(\S[^\n]*)", re.M | re.I
)
"""A line of a map. Searching many lines at once is fast where most of them do not match."""
_AT_ONCE = 1 << 18
_MOST_FILES = 1 << 10
_MOST_OPEN = 1 << 6
DUMP = re.compile(r"jit-([0-9]{1,10})\.dump")
MAP = re.compile(r"perf-([0-9]{1,10})\.map")


class Load(NamedTuple):
    """From `time` on `code` is at `address` and is called `name`."""

    time: int
    address: int
    code: bytes
    name: str


class JitDump:
    """The functions of a process in order of the file: columns `times`, `addresses`, `sizes` (of
    code, bytes), `places` (of code in the file) and `names`. `cut` says why it ends early, None if
    it does not. Times are TSC ticks with `in_ticks`, else nanoseconds of CLOCK_MONOTONIC. `file` is
    its descriptor, which is kept for the first of many alone: the others are opened for each
    function.
    """

    def __init__(self, pid: int, path: str, file: int, *, in_ticks: bool) -> None:
        self.pid = pid
        self.in_ticks = in_ticks
        self.cut: str | None = None
        self.times, self.addresses, self.sizes = array("Q"), array("Q"), array("Q")
        self.names: list[str] = []
        self.places = array("Q")
        self._last: dict[int, int] | None = None  # by address, once something has moved
        self._path, self._identity = path, _identity(file)
        self._file: int | None = None
        if len(_OPEN) < _MOST_OPEN:
            self._file = os.dup(file)
            weakref.finalize(self, os.close, self._file)
            _OPEN.add(self)

    def __len__(self) -> int:
        return len(self.times)

    def code(self, number: int) -> bytes:
        """The code of a function; nothing if the file has become shorter, or is another by now."""
        size, place = self.sizes[number], self.places[number]
        try:
            if self._file is not None:
                code = os.pread(self._file, size, place)
            else:
                with Path(self._path).open("rb", buffering=0) as file:
                    same = _identity(file.fileno()) == self._identity
                    code = os.pread(file.fileno(), size, place) if same else b""
        except OSError:
            return b""
        return code if len(code) == size else b""

    @property
    def loads(self) -> list[Load]:
        """All of them, with their code."""
        columns = zip(self.times, self.addresses, self.names, strict=True)
        return [
            Load(time, address, self.code(number), name)
            for number, (time, address, name) in enumerate(columns)
        ]

    def add(self, time: int, address: int, place: int, size: int, name: str) -> None:
        """One more, whose code is at an offset of the file."""
        if self._last is not None:
            self._last[address] = len(self)
        self.times.append(time)
        self.addresses.append(address)
        self.places.append(place)
        self.sizes.append(size)
        self.names.append(name)

    def move(self, time: int, old: int, new: int) -> None:
        """What came to `old` last is at `new` from `time` on."""
        if self._last is None:
            self._last = {address: number for number, address in enumerate(self.addresses)}
        number = self._last.pop(old, None)
        if number is not None and new < UPPER - self.sizes[number]:
            place, size = self.places[number], self.sizes[number]
            self.add(time, new, place, size, self.names[number])


_OPEN: weakref.WeakSet[JitDump] = weakref.WeakSet()
"""Those that keep their descriptor."""


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


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
                raise unreadable_image(error, str(path)) from error
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
    """A whole file, which is called `name` in errors. Raises ImageError for what is none, or tells
    of too many functions; of one that is cut all that is whole.
    """
    source = name or path
    with _opened(path, source) as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            raise ImageError("too short for a jitdump", source=source, offset=0, value=len(head))
        magic, version, size, _, _, pid, _, flags = _HEADER.unpack(head)
        if magic != _MAGIC or version != 1:
            raise ImageError("no jitdump of version 1", source=source, offset=0, value=magic)
        try:
            in_ticks = bool(flags & _ARCH_TIMESTAMP)
            found = JitDump(pid, path, file.fileno(), in_ticks=in_ticks)
            found.cut = _read_records(found, file, max(size, _HEADER.size), source)
        except OSError as error:
            raise unreadable_image(error, source) from error
    return found


def _read_records(found: JitDump, file: BinaryIO, at: int, source: str) -> str | None:
    end = os.fstat(file.fileno()).st_size
    for _ in range(_MOST_RECORDS):
        if at >= end:
            return None
        file.seek(at)
        head = file.read(_RECORD.size)
        if len(head) < _RECORD.size:
            return f"the file ends at {end:#x}, within a record"
        kind, length, time = _RECORD.unpack(head)
        if not _RECORD.size <= length <= end - at:
            return f"bad size {length} of the record at {at:#x}"
        if len(found) >= MOST_FUNCTIONS:
            raise ImageError(f"more than {MOST_FUNCTIONS:,} functions", source=source, offset=at)
        if kind == _CODE_LOAD:
            _load(found, file, time, at + _RECORD.size, length - _RECORD.size)
        elif kind == _CODE_MOVE and length >= _RECORD.size + _MOVE.size:
            *_, old, new, _, _ = _MOVE.unpack(file.read(_MOVE.size))
            found.move(time, old, new)
        at += length
    raise ImageError(f"more than {_MOST_RECORDS:,} records", source=source, offset=at)


def _load(found: JitDump, file: BinaryIO, time: int, at: int, length: int) -> None:
    if length < _LOAD.size:
        return
    *_, address, size, _ = _LOAD.unpack(file.read(_LOAD.size))
    # the name ends in a zero byte, and the code is behind it
    room = length - _LOAD.size - size
    if size <= 0 or room <= 0 or address >= UPPER - size:
        return
    name = file.read(min(room, _LONGEST_NAME))
    end = name.find(b"\0")
    if end >= 0:
        place = at + _LOAD.size + end + 1
        text = name[: min(end, _MOST_NAME)].decode(errors="replace")
        found.add(time, address, place, size, text)


def read_map(path: str, name: str | None = None) -> Iterator[tuple[int, int, str]]:
    """(address, size, name) of each line that has them. Raises ImageError, which calls the file
    `name`, also for too many of them.
    """
    source = name or path
    with _opened(path, source) as file:
        left, count, rest = _LARGEST_MAP, 0, b""
        while block := file.read(_AT_ONCE):
            left -= len(block)
            block = rest + block
            end = block.rfind(b"\n") + 1
            rest = block[end:]
            if left < 0 or len(rest) > _LONGEST_NAME:
                raise ImageError("names are too long, or too many", source=source, value=len(rest))
            for row in _functions(block[:end]):
                count += 1
                if count > MOST_FUNCTIONS:
                    raise ImageError(f"more than {MOST_FUNCTIONS:,} functions", source=source)
                yield row
        yield from _functions(rest)


def _functions(lines: bytes) -> Iterator[tuple[int, int, str]]:
    for found in _FUNCTION.finditer(lines):
        address, size = int(found[1], 16), int(found[2], 16)
        if size > 0 and address < UPPER - size:
            yield address, size, found[3].rstrip(b"\r")[:_MOST_NAME].decode(errors="replace")


def _opened(path: str, source: str) -> BinaryIO:
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ImageError("not a regular file", source=source)
        return Path(path).open("rb")
    except OSError as error:
        raise unreadable_image(error, source) from error
