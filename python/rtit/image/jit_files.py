"""Files about JIT-compiled code: jitdump files and perf maps.

A jitdump (`jit-PID.dump`; tools/perf/Documentation/jitdump-specification.txt of Linux) has code
with times; a perf map (`perf-PID.map`) has only addresses, sizes and names. A dump can be large, so
`JitDump` keeps the offsets of the code and reads it when it is needed.
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
from rtit.image.mappings import KERNEL_START

_HEADER = struct.Struct("<IIIIIIQQ")
_RECORD = struct.Struct("<IIQ")
_LOAD = struct.Struct("<IIQQQQ")
_MOVE = struct.Struct("<IIQQQQQ")
_MAGIC = 0x4A695444
_ARCH_TIMESTAMP = 1
_CODE_LOAD, _CODE_MOVE = 0, 1
MAX_FUNCTIONS = 1 << 18
"""Each needs some hundred bytes of memory, but only sixty in the file."""
_MAX_RECORDS = 1 << 22
_MAX_KEPT_NAME, _MAX_NAME = 1 << 10, 1 << 16
"""Bytes of a name that are kept, and that are read."""
MAX_MAP_SIZE = 1 << 26
_FUNCTION = re.compile(
    rb"^[ \t]*(?:0x)?([0-9a-f]{1,16})[ \t]+(?:0x)?([0-9a-f]{1,16})[ \t]+(\S[^\n]*)", re.M | re.I
)
"""A line of a map. It is searched in blocks of many lines, as most lines can be something else."""
_BLOCK_SIZE = 1 << 18
_MAX_FILES = 1 << 10
_MAX_OPEN = 1 << 6
DUMP_NAME = re.compile(r"jit-([0-9]{1,10})\.dump")
MAP_NAME = re.compile(r"perf-([0-9]{1,10})\.map")


class JitFunction(NamedTuple):
    """From `time` on, function `name` with `code` is at `address`."""

    time: int
    address: int
    code: bytes
    name: str


class JitDump:
    """The functions of a process, as columns in file order.

    `sizes` are in bytes of code, `code_offsets` those of the code in the file. Times are TSC ticks
    with `in_ticks`, else nanoseconds of CLOCK_MONOTONIC. `incomplete` says why the file ends early,
    None if it does not. `file` is the descriptor; only the first dumps keep theirs open, the others
    open the file again for each function.
    """

    def __init__(self, pid: int, path: str, file: int, *, in_ticks: bool) -> None:
        self.pid = pid
        self.in_ticks = in_ticks
        self.incomplete: str | None = None
        self.times, self.addresses, self.sizes = array("Q"), array("Q"), array("Q")
        self.names: list[str] = []
        self.code_offsets = array("Q")
        self._last: dict[int, int] | None = None  # by address, once something has moved
        self._path, self._identity = path, _device_and_inode(file)
        self._file: int | None = None
        if len(_OPEN) < _MAX_OPEN:
            self._file = os.dup(file)
            weakref.finalize(self, os.close, self._file)
            _OPEN.add(self)

    def __len__(self) -> int:
        return len(self.times)

    def code_of_function(self, number: int) -> bytes:
        """Return the code of a function; empty if the file became shorter or was replaced."""
        size, offset = self.sizes[number], self.code_offsets[number]
        try:
            if self._file is not None:
                code = os.pread(self._file, size, offset)
            else:
                with Path(self._path).open("rb", buffering=0) as file:
                    same = _device_and_inode(file.fileno()) == self._identity
                    code = os.pread(file.fileno(), size, offset) if same else b""
        except OSError:
            return b""
        return code if len(code) == size else b""

    @property
    def functions_with_code(self) -> list[JitFunction]:
        """All functions, with their code."""
        columns = zip(self.times, self.addresses, self.names, strict=True)
        return [
            JitFunction(time, address, self.code_of_function(number), name)
            for number, (time, address, name) in enumerate(columns)
        ]

    def add_function(self, time: int, address: int, code_offset: int, size: int, name: str) -> None:
        """Add a function with code at an offset of the file."""
        if self._last is not None:
            self._last[address] = len(self)
        self.times.append(time)
        self.addresses.append(address)
        self.code_offsets.append(code_offset)
        self.sizes.append(size)
        self.names.append(name)

    def move_function(self, time: int, old: int, new: int) -> None:
        """The function that is at address `old` moves to `new` at `time`."""
        if self._last is None:
            self._last = {address: number for number, address in enumerate(self.addresses)}
        number = self._last.pop(old, None)
        if number is not None and new < KERNEL_START - self.sizes[number]:
            code_offset, size = self.code_offsets[number], self.sizes[number]
            self.add_function(time, new, code_offset, size, self.names[number])


_OPEN: weakref.WeakSet[JitDump] = weakref.WeakSet()
"""Dumps that keep their descriptor open."""


def _device_and_inode(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def find_jit_files(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the regular files that have names of jitdump files or perf maps.

    `paths` are such files, or folders of them. Raises ImageError for anything else.
    """
    found: dict[str, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            try:
                there = sorted(each.name for each in path.iterdir())
            except OSError as error:
                raise unreadable_image(error, str(path)) from error
            names = [
                name for kind in (DUMP_NAME, MAP_NAME) for name in there if kind.fullmatch(name)
            ]
            for name in names[:_MAX_FILES]:
                if (path / name).is_file():
                    found[os.fspath(path / name)] = None
        elif path.is_file() and (DUMP_NAME.fullmatch(path.name) or MAP_NAME.fullmatch(path.name)):
            found[os.fspath(path)] = None
        else:
            message = "neither a folder nor a regular file named jit-PID.dump or perf-PID.map"
            raise ImageError(message, source=os.fspath(path))
    return list(found)


def read_jitdump(path: str, name: str | None = None) -> JitDump:
    """Return the functions of a file; `name` is its name in errors.

    If the file was cut, only complete records are read. Raises ImageError if it is not a jitdump or
    has too many functions.
    """
    source = name or path
    with open_regular_file(path, source) as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            raise ImageError("too short for a jitdump", source=source, offset=0, value=len(head))
        magic, version, size, _, _, pid, _, flags = _HEADER.unpack(head)
        if magic != _MAGIC or version != 1:
            raise ImageError("not a jitdump of version 1", source=source, offset=0, value=magic)
        try:
            in_ticks = bool(flags & _ARCH_TIMESTAMP)
            found = JitDump(pid, path, file.fileno(), in_ticks=in_ticks)
            found.incomplete = _read_records(found, file, max(size, _HEADER.size), source)
        except OSError as error:
            raise unreadable_image(error, source) from error
    return found


def _read_records(found: JitDump, file: BinaryIO, at: int, source: str) -> str | None:
    end = os.fstat(file.fileno()).st_size
    for _ in range(_MAX_RECORDS):
        if at >= end:
            return None
        file.seek(at)
        head = file.read(_RECORD.size)
        if len(head) < _RECORD.size:
            return f"the file ends at {end:#x}, within a record"
        kind, length, time = _RECORD.unpack(head)
        if not _RECORD.size <= length <= end - at:
            return f"bad size {length} of the record at {at:#x}"
        if len(found) >= MAX_FUNCTIONS:
            raise ImageError(f"more than {MAX_FUNCTIONS:,} functions", source=source, offset=at)
        if kind == _CODE_LOAD:
            _read_code_load_record(found, file, time, at + _RECORD.size, length - _RECORD.size)
        elif kind == _CODE_MOVE and length >= _RECORD.size + _MOVE.size:
            *_, old, new, _, _ = _MOVE.unpack(file.read(_MOVE.size))
            found.move_function(time, old, new)
        at += length
    raise ImageError(f"more than {_MAX_RECORDS:,} records", source=source, offset=at)


def _read_code_load_record(found: JitDump, file: BinaryIO, time: int, at: int, length: int) -> None:
    if length < _LOAD.size:
        return
    *_, address, size, _ = _LOAD.unpack(file.read(_LOAD.size))
    # The name ends in a zero byte; the code follows.
    room = length - _LOAD.size - size
    if size <= 0 or room <= 0 or address >= KERNEL_START - size:
        return
    name = file.read(min(room, _MAX_NAME))
    end = name.find(b"\0")
    if end >= 0:
        code_offset = at + _LOAD.size + end + 1
        text = name[: min(end, _MAX_KEPT_NAME)].decode(errors="replace")
        found.add_function(time, address, code_offset, size, text)


def read_perf_map(path: str, name: str | None = None) -> Iterator[tuple[int, int, str]]:
    """Yield (address, size, name) of each line that has them; `name` is that of the file in errors.

    Raises ImageError if the file cannot be read or has too many functions.
    """
    source = name or path
    with open_regular_file(path, source) as file:
        left, count, rest = MAX_MAP_SIZE, 0, b""
        while block := file.read(_BLOCK_SIZE):
            left -= len(block)
            block = rest + block
            end = block.rfind(b"\n") + 1
            rest = block[end:]
            if left < 0 or len(rest) > _MAX_NAME:
                raise ImageError("names are too long, or too many", source=source, value=len(rest))
            for row in _parse_perf_map(block[:end]):
                count += 1
                if count > MAX_FUNCTIONS:
                    raise ImageError(f"more than {MAX_FUNCTIONS:,} functions", source=source)
                yield row
        yield from _parse_perf_map(rest)


def _parse_perf_map(lines: bytes) -> Iterator[tuple[int, int, str]]:
    for found in _FUNCTION.finditer(lines):
        address, size = int(found[1], 16), int(found[2], 16)
        if size > 0 and address < KERNEL_START - size:
            yield address, size, found[3].rstrip(b"\r")[:_MAX_KEPT_NAME].decode(errors="replace")


def open_regular_file(path: str, source: str) -> BinaryIO:
    """Open a file for reading; `source` is its name in errors.

    Raises ImageError for anything but a regular file, and if it cannot be opened.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ImageError("not a regular file", source=source)
        return Path(path).open("rb")
    except OSError as error:
        raise unreadable_image(error, source) from error
