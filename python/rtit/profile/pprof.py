"""pprof's profile.proto (github.com/google/pprof, proto/profile.proto), compressed with gzip.

A sample a context: a function and the calls that led to it, with the instructions of that function
itself in it, exact. The place of the function is its first instruction, that of a caller the call.
Addresses are those of the ELF files. Code in no file (the kernel's, JIT) belongs to the function
that was called last: it is not known there whether a jump or a system call leads to another.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rtit.profile.lines import Owners, SourceLines
from rtit.profile.table import NOWHERE

if TYPE_CHECKING:
    from rtit.profile.calls import Calls, Place
    from rtit.profile.table import Binary

_LEVEL = 6


def pprof(
    binaries: Sequence[Binary], calls: Calls, comments: Sequence[str], *, outside: bool = False
) -> bytes:
    """The whole file. Contexts whose function is in none of `binaries` are left out, but for those
    in no file at all if `outside`.
    """
    text = _Strings()
    places = _Places(binaries, text, calls.outside)
    samples = []
    for context, own in calls.contexts.items():
        entry, source = context[-1]
        if entry.binary not in places.binaries and not (outside and entry.binary == NOWHERE):
            continue
        stack = [entry, source, *(source for _entry, source in reversed(context[:-1]))]
        locations = b"".join([places.number(place) for place in stack if place != (NOWHERE, 0)])
        samples.append(_message(2, _message(1, locations) + _message(2, _varint(own))))
    kind = _number(1, text.number("instructions")) + _number(2, text.number("count"))
    body = [
        _message(1, kind),
        *samples,
        *(_message(3, each) for each in places.mappings()),
        *(_message(4, each) for each in places.locations),
        *(_message(5, each) for each in places.functions),
        _message(11, kind),
        _number(12, 1),
        *(_number(13, text.number(comment)) for comment in comments),
    ]
    body.extend(_message(6, each.encode(errors="replace")) for each in text.all)
    return gzip.compress(b"".join(body), _LEVEL, mtime=0)


class _Strings:
    """The table of strings; number 0 is the empty one."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def all(self) -> Iterator[str]:
        return iter(self._numbers)


class _Code:
    """What the places of a binary belong to."""

    def __init__(self, binary: Binary) -> None:
        self.owners = Owners(binary.symbols)
        self.lines = SourceLines(binary.symbols)


class _Places:
    """Locations, functions and mappings, made as they are asked for; they count from 1."""

    def __init__(
        self, binaries: Sequence[Binary], text: _Strings, outside: Mapping[Place, tuple[str, str]]
    ) -> None:
        self.binaries = {each.number: each for each in binaries}
        self.locations: list[bytes] = []
        self.functions: list[bytes] = []
        self._text = text
        self._outside = outside
        self._named: dict[tuple[str, str], int] = {}
        self._codes: dict[int, _Code] = {}
        self._numbers: dict[Place, bytes] = {}
        self._functions: dict[tuple[int, int], int] = {}
        self._mappings = {number: at for at, number in enumerate(self.binaries, 1)}

    def number(self, place: Place) -> bytes:
        """Of the location of a place, as a varint."""
        known = self._numbers.get(place)
        if known is None:
            number = len(self._numbers) + 1
            known = self._numbers[place] = _varint(number)
            self.locations.append(self._location(number, place))
        return known

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

    def _location(self, number: int, place: Place) -> bytes:
        found = _number(1, number)
        binary = self.binaries.get(place.binary)
        if binary is None:
            found += _number(3, place.offset)
            named = self._outside.get(place, ("", ""))
            return found + _message(4, _number(1, self._other(named))) if named[0] else found
        if place.binary not in self._codes:
            self._codes[place.binary] = _Code(binary)
        code = self._codes[place.binary]
        offset = np.array([place.offset], np.uint64)
        (owner,) = code.owners.of(offset).tolist()
        files, (file,), (line,) = code.lines.of(offset)
        address = binary.symbols.address(place.offset)
        found += _number(2, self._mappings[place.binary]) + _number(3, address)
        if owner < 0:
            return found
        source = files[file] if file >= 0 else ""
        function = self._function(place.binary, owner, code, source)
        return found + _message(4, _number(1, function) + _number(2, int(line)))

    def _other(self, named: tuple[str, str]) -> int:
        """Of a function in no file, or in a file that is left out: its module stands for that."""
        if named not in self._named:
            number = self._named[named] = len(self.functions) + 1
            name, module = map(self._text.number, named)
            self.functions.append(
                _number(1, number) + _number(2, name) + _number(3, name) + _number(4, module)
            )
        return self._named[named]

    def _function(self, binary: int, owner: int, code: _Code, source: str) -> int:
        from rtit._core import demangle

        key = binary, owner
        if key not in self._functions:
            self._functions[key] = len(self.functions) + 1
            function = self.binaries[binary].symbols.functions[owner]
            files, (file,), (line,) = code.lines.of(np.array([function.offset], np.uint64))
            self.functions.append(
                _number(1, self._functions[key])
                + _number(2, self._text.number(demangle(function.name)))
                + _number(3, self._text.number(function.name))
                + _number(4, self._text.number(files[file] if file >= 0 else source))
                + _number(5, int(line))
            )
        return self._functions[key]


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
