"""pprof's profile.proto (github.com/google/pprof, proto/profile.proto), compressed with gzip.

A sample is a line of a function in a calling context, the calls that led to the function, with the
exact number of instructions. The location of a line is its first instruction, that of a caller is
the call. A location has a `Line` for each inlined function and one for the function itself.
Addresses are those of the ELF files. Instructions that are counted for another function (PLT
stubs), and those of runs beyond `--max-edges`, are at the first instruction of the function.

Each sample has its instructions twice, as instructions/count and as samples/count: Go's compiler
reads the latter (go.dev/doc/pgo, "Alternative profile sources").

Code in no file (kernel, JIT code) belongs to the last function that was called: there it is unknown
whether a jump or a system call leads to another function.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from rtit.image.inlined_calls import Frame, FunctionIndex, InlinedCalls
from rtit.image.source_lines import source_lines_at
from rtit.profile.calls import CodeLocation
from rtit.profile.tables import NO_BINARY, iterate_rows
from rtit.text_escaping import escape_control_characters
from rtit.trace.tables.context_runs import (
    ContextRuns,
    add_up_by_context,
    instructions_of_runs,
    runs_of_binary,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.profile.calls import CallTable
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
    locations = _LocationTable(binaries, calls, text)
    sample_writer = _SampleWriter(calls, locations, include_unmapped=include_unmapped)
    kinds = [
        _integer_fields({1: text.number_of_string(name), 2: text.number_of_string("count")})
        for name in ("instructions", "samples")
    ]
    for each in kinds:
        yield _message_field(1, each)
    yield from sample_writer.encode_samples()
    yield from (_message_field(3, each) for each in locations.encode_mappings())
    yield from (_message_field(4, each) for each in locations.encode_locations())
    yield from (_message_field(5, each) for each in locations.functions)
    yield _message_field(11, kinds[0])
    yield _integer_field(12, 1)
    yield _integer_field(14, text.number_of_string("instructions"))
    yield from [_integer_field(13, text.number_of_string(comment)) for comment in comments]
    yield from (
        _message_field(6, escape_control_characters(each).encode()) for each in text.all_strings
    )


class _SampleWriter:
    """Writes the samples of each context."""

    def __init__(
        self, calls: CallTable, locations: _LocationTable, *, include_unmapped: bool
    ) -> None:
        self._contexts = calls.contexts
        self._locations = locations
        self._include_unmapped = include_unmapped
        self._calls = calls
        self._lines = _LinesOfContexts(calls, locations)
        # by call; 0 without a location, or before it has a number
        self._entries = array("Q", bytes(8 * len(calls)))
        self._sources = array("Q", bytes(8 * len(calls)))
        visited = bytearray(len(self._contexts))
        for context, _ in self._selected_contexts():
            for number, call in self._contexts.calls_up_to_root(context):
                source, entry = calls.caller_and_callee(call)
                if number == context and self._lines.remainder(context):
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
        for context, _ in self._selected_contexts():
            calls = [call for _, call in self._contexts.calls_up_to_root(context)]
            callers = b"".join(sources[call] for call in calls)
            if remainder := self._lines.remainder(context):
                yield _encode_sample(entries[calls[0]] + callers, remainder)
            for number, instructions in self._lines.lines(context):
                yield _encode_sample(_encode_varint(number) + callers, instructions)


def _encode_sample(stack: bytes, instructions: int) -> bytes:
    values = 2 * _encode_varint(instructions)
    return _message_field(2, _message_field(1, stack) + _message_field(2, values))


class _LinesOfContexts:
    """The instructions of each context by line.

    The runs of a context are cut into lines, by `_BinaryCode.lines_of_runs`.
    """

    def __init__(self, calls: CallTable, locations: _LocationTable) -> None:
        contexts = calls.contexts
        runs = contexts.take_runs()
        own = contexts.instructions_of_contexts().astype(np.int64)
        call = contexts.calls_of_contexts()
        binary, offset = (column[call] for column in calls.callee_columns())
        parts = [np.empty((3, 0), np.int64)]
        for number, code in locations.codes.items():
            owner = np.where(binary == number, code.find_functions(offset), -1)
            for some in runs_of_binary(runs, number):
                part = code.lines_of_runs(some, owner)
                part[1] += locations.first_lines[number]
                parts.append(part)
        context, line, count = np.concatenate(parts, axis=1)
        np.subtract.at(own, context, count)
        # undone calls have runs, but no instructions of their own
        kept = own[context] >= 0
        np.add.at(own, context[~kept], count[~kept])
        rows = np.flatnonzero(kept)[np.argsort(context[kept], kind="stable")]
        context, self._line, self._count = context[rows], line[rows], count[rows]
        locations.mark_lines(self._line)
        self._begin = np.searchsorted(context, np.arange(len(contexts) + 1))
        self._remainder = own

    def remainder(self, context: int) -> int:
        """Return the instructions whose line is not known."""
        return int(self._remainder[context])

    def lines(self, context: int) -> Iterator[tuple[int, int]]:
        """Iterate over the locations of the lines, with their instructions."""
        rows = slice(self._begin[context], self._begin[context + 1])
        yield from zip(self._line[rows].tolist(), self._count[rows].tolist(), strict=True)


class _StringTable:
    """Numbers strings; number 0 is the empty string."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number_of_string(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def all_strings(self) -> Iterator[str]:
        return iter(self._numbers)


class _BinaryCode:
    """Functions, source lines and inlined calls of a binary's instructions."""

    def __init__(self, binary: Binary, others: NDArray[np.uint64]) -> None:
        """`others` are offsets of locations, which need not have run."""
        self.binary = binary
        self._index = FunctionIndex(binary.symbols)
        self._owner = self._index.find_functions(binary.offset).astype(np.int32)
        known = np.unique(self._owner)
        first = binary.symbols.offsets[known[known >= 0]] if known[-1:] >= 0 else known[:0]
        # the rows of `binary.offset`, and then those of other offsets
        more = np.setdiff1d(np.append(others, first.astype(np.uint64)), binary.offset)
        self._more = more
        self._owner = np.append(self._owner, self._index.find_functions(more).astype(np.int32))
        offsets = np.append(binary.offset, more) if len(more) else binary.offset
        self._files, file, line = source_lines_at(binary.symbols, offsets)
        self._file, self._line = file.astype(np.int32), line.astype(np.int32)
        del file, line
        self._inlined = InlinedCalls(binary.symbols, offsets)
        # a line: rows of one line of the same inlined calls, without others between
        begins = np.arange(len(binary.offset)) == 0
        for column in (self._owner, self._file, self._line, self._inlined.innermost):
            begins[1:] |= column[1 : len(begins)] != column[: len(begins) - 1]
        self.line_starts = binary.offset[begins]
        """The offset of the first instruction of each line."""
        self._line_number = np.cumsum(begins, dtype=np.int32) - 1

    def find_functions(self, offsets: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the function at each offset, as `FunctionIndex` does."""
        return self._index.find_functions(offsets)

    def lines_of_runs(
        self, runs: ContextRuns, owner_of_context: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return contexts, lines by number, and instructions. Code of other functions than that of
        the context is left out.
        """
        binary = self.binary
        run, row = instructions_of_runs(runs, binary.offset, binary.length)
        context = runs.context[run]
        own = (self._owner[row] == owner_of_context[context]) & (self._owner[row] >= 0)
        line = self._line_number[row[own]].astype(np.int64)
        return add_up_by_context(context[own], line, runs.count[run[own]])

    def frames_at(self, offset: int) -> list[Frame]:
        """Return the functions at an offset, the innermost first; none if no function is known."""
        row = self._row_of_offset(offset)
        owner = int(self._owner[row])
        if owner < 0:
            return []
        first_row = self._row_of_offset(int(self.binary.symbols.offsets[owner]))
        _, first_file, first_line = self._inlined_frames(first_row)
        frames, file, line = self._inlined_frames(row)
        name = self.binary.symbols.name(owner)
        if file != first_file:
            # included in the function, as of a macro file
            first_line = 0
        frames.append(Frame(name, file or first_file, first_line, line))
        return frames

    def _row_of_offset(self, offset: int) -> int:
        executed = self.binary.offset.data
        row = bisect_left(executed, offset)
        if row < len(executed) and executed[row] == offset:
            return row
        return len(executed) + bisect_left(self._more.data, offset)

    def _inlined_frames(self, row: int) -> tuple[list[Frame], str, int]:
        file = int(self._file[row])
        name = self._files[file] if file >= 0 else ""
        return self._inlined.frames(int(self._inlined.innermost[row]), name, int(self._line[row]))


class _LocationTable:
    """Numbers locations, functions and mappings from 1. The lines of all binaries are the first
    locations.
    """

    def __init__(self, binaries: Sequence[Binary], calls: CallTable, text: _StringTable) -> None:
        self.binaries = {each.number: each for each in binaries}
        self.codes = {each.number: _BinaryCode(each, calls.offsets_in(each)) for each in binaries}
        self.first_lines: dict[int, int] = {}
        """The location of the first line of each binary."""
        self._line_count = 0
        for number, code in self.codes.items():
            self.first_lines[number] = self._line_count + 1
            self._line_count += len(code.line_starts)
        self._has_line = np.zeros(self._line_count + 1, bool)
        self.functions: list[bytes] = []
        self._text = text
        self._unmapped_functions = calls.unmapped_functions
        self._numbers: dict[CodeLocation, int] = {}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._mappings = {number: at for at, number in enumerate(self.binaries, 1)}

    def number_of_location(self, location: CodeLocation) -> int:
        """Return the number of a location; 0 for the caller of the first function."""
        if location == (NO_BINARY, 0):
            return 0
        return self._numbers.setdefault(location, self._line_count + len(self._numbers) + 1)

    def mark_lines(self, numbers: NDArray[np.int64]) -> None:
        """Note that the locations of lines are used."""
        self._has_line[numbers] = True

    def encode_locations(self) -> Iterator[bytes]:
        """Iterate over the locations that are used. `functions` is complete afterwards."""
        for binary, code in self.codes.items():
            first = self.first_lines[binary]
            lines = np.flatnonzero(self._has_line[first : first + len(code.line_starts)])
            for line, offset in iterate_rows((lines, code.line_starts[lines])):
                yield self._encode_location(first + line, CodeLocation(binary, offset))
        for location, number in self._numbers.items():
            yield self._encode_location(number, location)

    def _encode_location(self, number: int, location: CodeLocation) -> bytes:
        code = self.codes.get(location.binary)
        if code is None:
            return self._unmapped_location(number, location)
        address = code.binary.symbols.address(location.offset)
        message = _integer_fields({1: number, 2: self._mappings[location.binary], 3: address})
        for frame in code.frames_at(location.offset):
            function = self._number_of_function(frame.function, frame.file, frame.first_line)
            message += _message_field(4, _integer_fields({1: function, 2: frame.line}))
        return message

    def encode_mappings(self) -> Iterator[bytes]:
        for number, binary in self.binaries.items():
            segments = binary.symbols.elf.segments
            low = min((address for _, address, *_ in segments), default=0)
            high = max((address + size for _, address, _, size, _ in segments), default=0)
            build_id = (binary.build_id or b"").hex()
            path = self._text.number_of_string(binary.path)
            yield _integer_fields(
                {1: self._mappings[number], 2: low, 3: high, 5: path}
                | {6: self._text.number_of_string(build_id), 7: 1, 8: 1, 9: 1, 10: 1}
            )

    def _unmapped_location(self, number: int, location: CodeLocation) -> bytes:
        found = _integer_field(1, number) + _integer_field(3, location.offset)
        function = self._unmapped_functions.get(location, ("", ""))
        if not function[0]:
            return found
        # the module is in place of the source file
        number = self._number_of_function(*function, 0)
        return found + _message_field(4, _integer_field(1, number))

    def _number_of_function(self, name: str, file: str, first_line: int) -> int:
        from rtit._core import demangle

        key = name, file, first_line
        if key not in self._functions:
            self._functions[key] = len(self.functions) + 1
            texts = map(self._text.number_of_string, (demangle(name), name, file))
            values = self._functions[key], *texts, first_line
            self.functions.append(_integer_fields(dict(enumerate(values, 1))))
        return self._functions[key]


@lru_cache(1 << 16)
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
