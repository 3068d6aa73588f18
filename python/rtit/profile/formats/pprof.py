"""pprof's profile.proto (github.com/google/pprof, proto/profile.proto), compressed with gzip.

A sample a context: a function and the calls that led to it, with the instructions of that function
itself in it, exact. The place of the function is its first instruction, that of a caller the call.
Addresses are those of the ELF files. Code in no file (the kernel's, JIT) belongs to the function
that was called last: it is not known there whether a jump or a system call leads to another.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rtit.profile.source_lines import Owners, lines_of
from rtit.profile.tables import NOWHERE
from rtit.readable import as_text

if TYPE_CHECKING:
    from rtit.profile.calls import Calls, Place
    from rtit.profile.tables import Binary


_LEVEL = 6
_GZIP = 31
"""The window's bits as zlib has them for gzip, without a time."""
_PART = 1 << 16


def pprof(
    binaries: Sequence[Binary], calls: Calls, comments: Sequence[str], *, outside: bool = False
) -> Iterator[bytes]:
    """The whole file in parts. Contexts whose function is in none of `binaries` are left out, but
    for those in no file at all if `outside`.
    """
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    waiting = bytearray()
    for message in _messages(binaries, calls, comments, outside=outside):
        waiting += message
        if len(waiting) >= _PART:
            yield packer.compress(waiting)
            waiting.clear()
    yield packer.compress(waiting) + packer.flush()


def _messages(
    binaries: Sequence[Binary], calls: Calls, comments: Sequence[str], *, outside: bool
) -> Iterator[bytes]:
    text = _Strings()
    places = _Places(binaries, text, calls.outside)
    stacks = _Stacks(calls, places, outside=outside)
    places.describe()
    kind = _number(1, text.number("instructions")) + _number(2, text.number("count"))
    yield _message(1, kind)
    yield from stacks.samples()
    yield from (_message(3, each) for each in places.mappings())
    yield from (_message(4, each) for each in places.locations)
    yield from (_message(5, each) for each in places.functions)
    yield _message(11, kind)
    yield _number(12, 1)
    yield from [_number(13, text.number(comment)) for comment in comments]
    yield from (_message(6, as_text(each).encode(errors="replace")) for each in text.all)


class _Stacks:
    """Contexts with the numbers of their places, which are given in the order of the samples."""

    def __init__(self, calls: Calls, places: _Places, *, outside: bool) -> None:
        self._contexts = calls.contexts
        self._places = places
        self._outside = outside
        self._calls = calls
        # of calls; 0 where there is no place, or none yet
        self._entries = array("Q", bytes(8 * len(calls)))
        self._sources = array("Q", bytes(8 * len(calls)))
        known = bytearray(len(self._contexts))
        for context, _ in self._wanted():
            for number, call in self._contexts.calls(context):
                source, entry = calls.ends(call)
                if number == context and not self._entries[call]:
                    self._entries[call] = places.number(entry)
                if known[number]:
                    break
                known[number] = True
                if not self._sources[call]:
                    self._sources[call] = places.number(source)

    def _wanted(self) -> Iterator[tuple[int, int]]:
        for context, own in self._contexts:
            _, call = next(self._contexts.calls(context))
            binary = self._calls.ends(call)[1].binary
            if binary in self._places.binaries or (self._outside and binary == NOWHERE):
                yield context, own

    def samples(self) -> Iterator[bytes]:
        """Of each context the locations from the called function's on, and its instructions."""
        entries, sources = (
            [*map(_location_number, each)] for each in (self._entries, self._sources)
        )
        for context, own in self._wanted():
            calls = [call for _, call in self._contexts.calls(context)]
            stack = [entries[calls[0]], *(sources[call] for call in calls)]
            yield _message(2, _message(1, b"".join(stack)) + _message(2, _varint(own)))


class _Strings:
    """The table of strings; number 0 is the empty one."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def all(self) -> Iterator[str]:
        return iter(self._numbers)


class _Code(NamedTuple):
    """What places of a binary belong to: functions, files and lines, and those where the functions
    begin; -1 is not known.
    """

    files: list[str]
    owner: list[int]
    file: list[int]
    line: list[int]
    address: list[int]
    first_file: list[int]
    first_line: list[int]


def _code(binary: Binary, offsets: Sequence[int]) -> _Code:
    at = np.array(offsets, np.uint64)
    owner = Owners(binary.symbols).of(at)
    first = binary.symbols.offsets[owner] if len(binary.symbols.offsets) else at
    files, file, line = lines_of(binary.symbols, np.append(at, first))
    address = binary.symbols.addresses(at)
    size = len(at)
    columns = owner, file[:size], line[:size], address, file[size:], line[size:]
    return _Code(files, *(column.tolist() for column in columns))


class _Places:
    """Locations, functions and mappings; they count from 1. Locations are numbered as they are
    asked for, and described when all are.
    """

    def __init__(
        self, binaries: Sequence[Binary], text: _Strings, outside: Mapping[Place, tuple[str, str]]
    ) -> None:
        self.binaries = {each.number: each for each in binaries}
        self.locations: list[bytes] = []
        self.functions: list[bytes] = []
        self._text = text
        self._outside = outside
        self._named: dict[tuple[str, str], int] = {}
        self._numbers: dict[Place, int] = {}
        self._functions: dict[tuple[int, int], int] = {}
        self._mappings = {number: at for at, number in enumerate(self.binaries, 1)}

    def number(self, place: Place) -> int:
        """Of the location of a place; 0 for what called the first function."""
        if place == (NOWHERE, 0):
            return 0
        return self._numbers.setdefault(place, len(self._numbers) + 1)

    def describe(self) -> None:
        """Make the locations and their functions."""
        offsets: dict[int, list[int]] = {number: [] for number in self.binaries}
        for place in self._numbers:
            if place.binary in offsets:
                offsets[place.binary].append(place.offset)
        codes = {
            number: _code(self.binaries[number], own) for number, own in offsets.items() if own
        }
        rows = dict.fromkeys(codes, 0)
        for place, number in self._numbers.items():
            if place.binary in codes:
                row = rows[place.binary]
                rows[place.binary] = row + 1
                self.locations.append(self._location(number, place, codes[place.binary], row))
            else:
                self.locations.append(self._location_outside(number, place))

    def mappings(self) -> Iterator[bytes]:
        for number, binary in self.binaries.items():
            segments = binary.symbols.elf.segments
            low = min((address for _, address, *_ in segments), default=0)
            high = max((address + size for _, address, _, size, _ in segments), default=0)
            build_id = (binary.build_id or b"").hex()
            yield b"".join(
                [
                    _number(1, self._mappings[number]),
                    _number(2, low),
                    _number(3, high),
                    _number(5, self._text.number(binary.path)),
                    _number(6, self._text.number(build_id)),
                    _number(7, 1),
                    _number(8, 1),
                    _number(9, 1),
                ]
            )

    def _location_outside(self, number: int, place: Place) -> bytes:
        found = _number(1, number) + _number(3, place.offset)
        named = self._outside.get(place, ("", ""))
        return found + _message(4, _number(1, self._other(named))) if named[0] else found

    def _location(self, number: int, place: Place, code: _Code, row: int) -> bytes:
        found = _number(1, number) + _number(2, self._mappings[place.binary])
        found += _number(3, code.address[row])
        if code.owner[row] < 0:
            return found
        function = self._function(place.binary, code, row)
        return found + _message(4, _number(1, function) + _number(2, code.line[row]))

    def _other(self, named: tuple[str, str]) -> int:
        """Of a function in no file, or in a file that is left out: its module stands for that."""
        if named not in self._named:
            number = self._named[named] = len(self.functions) + 1
            name, module = map(self._text.number, named)
            self.functions.append(
                _number(1, number) + _number(2, name) + _number(3, name) + _number(4, module)
            )
        return self._named[named]

    def _function(self, binary: int, code: _Code, row: int) -> int:
        from rtit._core import demangle

        key = binary, code.owner[row]
        if key not in self._functions:
            self._functions[key] = len(self.functions) + 1
            name = self.binaries[binary].symbols.name(code.owner[row])
            # without a line of its own it is where the place is that is asked for first
            file = code.first_file[row] if code.first_file[row] >= 0 else code.file[row]
            self.functions.append(
                _number(1, self._functions[key])
                + _number(2, self._text.number(demangle(name)))
                + _number(3, self._text.number(name))
                + _number(4, self._text.number(code.files[file] if file >= 0 else ""))
                + _number(5, code.first_line[row])
            )
        return self._functions[key]


def _location_number(number: int) -> bytes:
    return _varint(number) if number else b""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    """A field of wire type 0; 0 is what it is without it."""
    return _varint(field << 3) + _varint(value) if value else b""


def _message(field: int, body: bytes) -> bytes:
    """A field of wire type 2."""
    return _varint(field << 3 | 2) + _varint(len(body)) + body
