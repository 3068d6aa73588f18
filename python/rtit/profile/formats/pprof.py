"""pprof's profile.proto (github.com/google/pprof, proto/profile.proto), compressed with gzip.

A sample is a calling context: a function and the calls that led to it, with the exact number of
instructions of the function itself. The function's location is its first instruction, that of a
caller is the call. Addresses are those of the ELF files.

Code in no file (kernel, JIT code) belongs to the last function that was called: there it is unknown
whether a jump or a system call leads to another function.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rtit.profile.source_lines import FunctionIndex, source_lines_at
from rtit.profile.tables import NO_BINARY
from rtit.text_escaping import name_to_text

if TYPE_CHECKING:
    from rtit.profile.calls import CallTable, CodeLocation
    from rtit.profile.tables import Binary

_GZIP_LEVEL = 6
_GZIP_WINDOW_BITS = 31
"""zlib's parameter for a gzip header, without a time."""
_CHUNK_BYTES = 1 << 16


def pprof_profile(
    binaries: Sequence[Binary],
    calls: CallTable,
    comments: Sequence[str],
    *,
    include_unmapped: bool = False,
) -> Iterator[bytes]:
    """Return the file in chunks.

    Contexts of functions outside `binaries` are left out; those in no file are kept with
    `include_unmapped`.
    """
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    buffer = bytearray()
    for message in _encode_profile_messages(
        binaries, calls, comments, include_unmapped=include_unmapped
    ):
        buffer += message
        if len(buffer) >= _CHUNK_BYTES:
            yield compressor.compress(buffer)
            buffer.clear()
    yield compressor.compress(buffer) + compressor.flush()


def _encode_profile_messages(
    binaries: Sequence[Binary], calls: CallTable, comments: Sequence[str], *, include_unmapped: bool
) -> Iterator[bytes]:
    text = _StringTable()
    locations = _LocationTable(binaries, text, calls.unmapped_functions)
    sample_writer = _SampleWriter(calls, locations, include_unmapped=include_unmapped)
    locations.build_messages()
    kind = _integer_field(1, text.number_of_string("instructions")) + _integer_field(
        2, text.number_of_string("count")
    )
    yield _message_field(1, kind)
    yield from sample_writer.encode_samples()
    yield from (_message_field(3, each) for each in locations.encode_mappings())
    yield from (_message_field(4, each) for each in locations.locations)
    yield from (_message_field(5, each) for each in locations.functions)
    yield _message_field(11, kind)
    yield _integer_field(12, 1)
    yield from [_integer_field(13, text.number_of_string(comment)) for comment in comments]
    yield from (
        _message_field(6, name_to_text(each).encode(errors="replace")) for each in text.all_strings
    )


class _SampleWriter:
    """Writes a sample per context. Locations get numbers in the order of the samples."""

    def __init__(
        self, calls: CallTable, locations: _LocationTable, *, include_unmapped: bool
    ) -> None:
        self._contexts = calls.contexts
        self._locations = locations
        self._include_unmapped = include_unmapped
        self._calls = calls
        # by call; 0 without a location, or before it has a number
        self._entries = array("Q", bytes(8 * len(calls)))
        self._sources = array("Q", bytes(8 * len(calls)))
        visited = bytearray(len(self._contexts))
        for context, _ in self._selected_contexts():
            for number, call in self._contexts.calls_up_to_root(context):
                source, entry = calls.caller_and_callee(call)
                if number == context and not self._entries[call]:
                    self._entries[call] = locations.number_of_location(entry)
                if visited[number]:
                    break
                visited[number] = True
                if not self._sources[call]:
                    self._sources[call] = locations.number_of_location(source)

    def _selected_contexts(self) -> Iterator[tuple[int, int]]:
        for context, instructions in self._contexts:
            _, call = next(self._contexts.calls_up_to_root(context))
            binary = self._calls.caller_and_callee(call)[1].binary
            if binary in self._locations.binaries or (
                self._include_unmapped and binary == NO_BINARY
            ):
                yield context, instructions

    def encode_samples(self) -> Iterator[bytes]:
        """Iterate over samples: locations, the called function's first, and instructions."""
        entries, sources = (
            [_encode_varint(number) if number else b"" for number in each]
            for each in (self._entries, self._sources)
        )
        for context, instructions in self._selected_contexts():
            calls = [call for _, call in self._contexts.calls_up_to_root(context)]
            stack = [entries[calls[0]], *(sources[call] for call in calls)]
            yield _message_field(
                2,
                _message_field(1, b"".join(stack))
                + _message_field(2, _encode_varint(instructions)),
            )


class _StringTable:
    """Numbers strings; number 0 is the empty string."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number_of_string(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def all_strings(self) -> Iterator[str]:
        return iter(self._numbers)


class _CodeInfo(NamedTuple):
    """Functions, source lines and addresses of offsets in a binary; -1 is unknown.

    `first_file` and `first_line` are those of the start of the function.
    """

    files: list[str]
    owner: list[int]
    file: list[int]
    line: list[int]
    address: list[int]
    first_file: list[int]
    first_line: list[int]


def _code_info_of_offsets(binary: Binary, offsets: Sequence[int]) -> _CodeInfo:
    at = np.array(offsets, np.uint64)
    owner = FunctionIndex(binary.symbols).find_functions(at)
    first = binary.symbols.offsets[owner] if len(binary.symbols.offsets) else at
    files, file, line = source_lines_at(binary.symbols, np.append(at, first))
    address = binary.symbols.addresses(at)
    size = len(at)
    columns = owner, file[:size], line[:size], address, file[size:], line[size:]
    return _CodeInfo(files, *(column.tolist() for column in columns))


class _LocationTable:
    """Numbers locations, functions and mappings from 1.

    Locations are described after all have numbers, so that each line table is read once.
    """

    def __init__(
        self,
        binaries: Sequence[Binary],
        text: _StringTable,
        unmapped_functions: Mapping[CodeLocation, tuple[str, str]],
    ) -> None:
        self.binaries = {each.number: each for each in binaries}
        self.locations: list[bytes] = []
        self.functions: list[bytes] = []
        self._text = text
        self._unmapped_functions = unmapped_functions
        self._unmapped_function_numbers: dict[tuple[str, str], int] = {}
        self._numbers: dict[CodeLocation, int] = {}
        self._functions: dict[tuple[int, int], int] = {}
        self._mappings = {number: at for at, number in enumerate(self.binaries, 1)}

    def number_of_location(self, location: CodeLocation) -> int:
        """Return the number of a location; 0 for the caller of the first function."""
        if location == (NO_BINARY, 0):
            return 0
        return self._numbers.setdefault(location, len(self._numbers) + 1)

    def build_messages(self) -> None:
        """Make the messages of locations and functions."""
        offsets: dict[int, list[int]] = {number: [] for number in self.binaries}
        for location in self._numbers:
            if location.binary in offsets:
                offsets[location.binary].append(location.offset)
        codes = {
            number: _code_info_of_offsets(self.binaries[number], each)
            for number, each in offsets.items()
            if each
        }
        rows = dict.fromkeys(codes, 0)
        for location, number in self._numbers.items():
            if location.binary in codes:
                row = rows[location.binary]
                rows[location.binary] = row + 1
                self.locations.append(
                    self._encode_location(number, location, codes[location.binary], row)
                )
            else:
                self.locations.append(self._unmapped_location(number, location))

    def encode_mappings(self) -> Iterator[bytes]:
        for number, binary in self.binaries.items():
            segments = binary.symbols.elf.segments
            low = min((address for _, address, *_ in segments), default=0)
            high = max((address + size for _, address, _, size, _ in segments), default=0)
            build_id = (binary.build_id or b"").hex()
            path = self._text.number_of_string(binary.path)
            yield _integer_fields(
                {1: self._mappings[number], 2: low, 3: high, 5: path}
                | {6: self._text.number_of_string(build_id), 7: 1, 8: 1, 9: 1}
            )

    def _unmapped_location(self, number: int, location: CodeLocation) -> bytes:
        found = _integer_field(1, number) + _integer_field(3, location.offset)
        function = self._unmapped_functions.get(location, ("", ""))
        if not function[0]:
            return found
        return found + _message_field(4, _integer_field(1, self._unmapped_function(function)))

    def _encode_location(
        self, number: int, location: CodeLocation, code: _CodeInfo, row: int
    ) -> bytes:
        found = _integer_field(1, number) + _integer_field(2, self._mappings[location.binary])
        found += _integer_field(3, code.address[row])
        if code.owner[row] < 0:
            return found
        function = self._number_of_function(location.binary, code, row)
        return found + _message_field(
            4, _integer_field(1, function) + _integer_field(2, code.line[row])
        )

    def _unmapped_function(self, function: tuple[str, str]) -> int:
        """Return the number of a function in no file, or in a file that is left out, by name and
        module.
        """
        if function not in self._unmapped_function_numbers:
            number = self._unmapped_function_numbers[function] = len(self.functions) + 1
            name, module = map(self._text.number_of_string, function)
            self.functions.append(_integer_fields({1: number, 2: name, 3: name, 4: module}))
        return self._unmapped_function_numbers[function]

    def _number_of_function(self, binary: int, code: _CodeInfo, row: int) -> int:
        from rtit._core import demangle

        key = binary, code.owner[row]
        if key not in self._functions:
            self._functions[key] = len(self.functions) + 1
            name = self.binaries[binary].symbols.name(code.owner[row])
            # a function without a line of its own gets the file of its first location
            file = code.first_file[row] if code.first_file[row] >= 0 else code.file[row]
            names = demangle(name), name, code.files[file] if file >= 0 else ""
            values = (
                self._functions[key],
                *map(self._text.number_of_string, names),
                code.first_line[row],
            )
            self.functions.append(_integer_fields(dict(enumerate(values, 1))))
        return self._functions[key]


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _integer_field(field: int, value: int) -> bytes:
    """Return a field of wire type 0; the default value 0 is left out."""
    return _encode_varint(field << 3) + _encode_varint(value) if value else b""


def _integer_fields(values: Mapping[int, int]) -> bytes:
    return b"".join(_integer_field(field, value) for field, value in values.items())


def _message_field(field: int, body: bytes) -> bytes:
    """Return a field of wire type 2."""
    return _encode_varint(field << 3 | 2) + _encode_varint(len(body)) + body
