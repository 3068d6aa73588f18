"""The header at the start of a perf.data file.

magic "PERFILE2", u64 size of the header, u64 size of an entry of the attrs section, then (offset,
size) of the attrs, the data and an obsolete section, then 256 feature bits. With a header size of
16 nothing follows the size: pipe mode.

Walking over the records of a file by their sizes, and noting those that the rest depends on.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rtit.errors import NotPerfDataError, PerfDataError, UnsupportedError
from rtit.perfdata import records
from rtit.perfdata.attr import SMALLEST
from rtit.perfdata.records import HEADER

MAGIC = b"PERFILE2"
VERSION_1 = b"PERFFILE"
MAGICS = (MAGIC, MAGIC[::-1], VERSION_1)
"""How files begin of which this version can say what they are; it reads those of the first."""
FILE = struct.Struct("<8sQQ QQ QQ QQ 4Q")
PIPE = struct.Struct("<8sQ")
SECTION = struct.Struct("<QQ")
DATA_SIZE_OFFSET = 48
"""Where the header says how many bytes of records there are: a recorder keeps it up to date."""
FLAGS_OFFSET = 72
"""Where the feature bits are."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the file, in bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Header:
    """`attrs` is None in pipe mode, where attrs and features are records."""

    attrs: Section | None
    entry_size: int
    data: Section
    features: tuple[int, ...]

    @classmethod
    def decode(cls, file: memoryview, source: str) -> Header:
        """Read and check a header. `file` is the whole file.

        Raises PerfDataError where it is no perf.data file or contradicts the file's size,
        UnsupportedError for one of a big-endian machine or of perf before 2010.
        """
        magic = bytes(file[: len(MAGIC)])
        if magic == MAGIC[::-1]:
            raise UnsupportedError(f"{source}: perf.data of a big-endian machine is not read")
        if magic == VERSION_1:
            raise UnsupportedError(f"{source}: version 1 of perf.data is not read")
        if magic != MAGIC:
            raise NotPerfDataError(source, magic)
        if len(file) < PIPE.size:
            raise PerfDataError(
                "ends within the header", source=source, offset=len(file), value=len(file)
            )
        size: int = PIPE.unpack_from(file)[1]
        if size == PIPE.size:
            return cls(None, 0, Section(size, len(file) - size), ())
        if size < FILE.size:
            raise PerfDataError("bad size of the header", source=source, offset=8, value=size)
        if len(file) < FILE.size:
            raise PerfDataError(
                "ends within the header", source=source, offset=len(file), value=len(file)
            )
        _, _, entry_size, attrs_offset, attrs_size, data_offset, data_size, _, _, *flags = (
            FILE.unpack_from(file)
        )
        attrs = Section(attrs_offset, attrs_size)
        if entry_size < SMALLEST + SECTION.size or entry_size > len(file):
            raise PerfDataError(
                "bad size of an attr's entry", source=source, offset=16, value=entry_size
            )
        if attrs.end > len(file):
            raise PerfDataError(
                "the attrs lie outside of the file", source=source, offset=24, value=attrs_offset
            )
        if attrs_size % entry_size:
            raise PerfDataError(
                "the attrs are no whole number of entries",
                source=source,
                offset=32,
                value=attrs_size,
            )
        if data_offset < FILE.size:
            raise PerfDataError(
                "the records overlap the header", source=source, offset=40, value=data_offset
            )
        bits = sum(word << 64 * i for i, word in enumerate(flags))
        features = tuple(number for number in range(256) if bits >> number & 1)
        return cls(attrs, entry_size, Section(data_offset, data_size), features)


_AUXTRACE = records.Auxtrace.layout.number
_TRACING_DATA = records.TracingData.layout.number
_FEATURE = records.HeaderFeature.layout.number
_BEHIND = 1 << 24
"""Bytes that were read are let go of when there are so many."""
_CHECKED = 1 << 18
"""After so many bytes it is looked again whether the file is what it was. What was read since, of a
file that was cut meanwhile, may be zeros: an error comes behind it, never none.
"""


class Place(NamedTuple):
    """A record: offset in the file, type, misc, and size in bytes (without an AUXTRACE's data)."""

    offset: int
    number: int
    misc: int
    size: int


def check_size(mapped: mmap.mmap, size: int, source: str) -> None:
    """Raise PerfDataError if the file has become shorter than it was when it was mapped.

    The pages that are gone read as zeros in the command (`_core.read_truncated_maps_as_zeros`).
    In another process the system sends SIGBUS to whoever reads them before this check.
    """
    now = mapped.size()
    if now < size:
        message = "the file became shorter while it was read"
        raise PerfDataError(message, source=source, offset=now, value=now)


class Behind:
    """Lets go of a mapped file behind one who reads it from its start on."""

    def __init__(self, let_go: Callable[[int, int], None], check: Callable[[], None]) -> None:
        self._let_go = let_go
        self._check = check
        self._start = 0
        self._checked = -_CHECKED

    def at(self, offset: int) -> None:
        """What is before `offset` has been read. Raises PerfDataError if the file is not what it
        was.
        """
        if not 0 <= offset - self._checked < _CHECKED:
            self._check()
            self._checked = offset
        if offset - self._start >= _BEHIND:
            self._let_go(self._start, offset)
            self._start = offset


class Scan:
    """The places of a file's records. Memory grows with the noted records alone: what was walked
    over is let go of.

    `noted` holds, by type number, the records that say how to read the others; of AUXTRACE all.
    `features` holds the (offset, size) of features that came as records. `incomplete` says in one
    sentence why the file ends early.

    Raises PerfDataError for a record that cannot be, unless the file was cut: then the records end
    before it.
    """

    NOTED = frozenset(
        cls.layout.number
        for cls in (
            records.Auxtrace,
            records.AuxtraceInfo,
            records.TimeConv,
            records.HeaderAttr,
            records.BuildId,
            records.IdIndex,
            records.AuxOutputHwId,
        )
    ) | set(records.COMPRESSED)

    def __init__(
        self,
        file: memoryview,
        header: Header,
        source: str,
        behind: Callable[[], Behind],
    ) -> None:
        self._file = file
        self._behind = behind
        self._source = source
        self._start = header.data.offset
        self.incomplete: str | None = None
        self.noted: dict[int, list[Place]] = {number: [] for number in self.NOTED}
        self.features: dict[int, tuple[int, int]] = {}
        whole = len(file)
        counted = header.attrs is not None and header.data.size > 0
        self._cut = not counted or header.data.end > whole
        self._end = min(header.data.end, whole) if counted else whole
        if header.data.end > whole:
            self.note(f"the file has {whole:,} bytes, its records end at byte {header.data.end:,}")
        elif header.attrs is not None and not header.features:
            self.note("the recorder did not finish the file")
        for place in self.walk():
            if place.number in self.NOTED:
                self.noted[place.number].append(place)
            elif place.number == _FEATURE and place.size >= 16:
                body = place.offset + 16
                number = int.from_bytes(file[body - 8 : body], "little")
                self.features[number] = (body, place.size - 16)

    def note(self, message: str) -> None:
        """Keep the first reason why the file ends early."""
        if self.incomplete is None:
            self.incomplete = message

    def walk(self) -> Iterator[Place]:
        """Each whole record, in the order of the file; an AUXTRACE is whole with its data."""
        file, offset = self._file, self._start
        behind = self._behind()
        while offset < self._end:
            behind.at(offset)
            if self._end - offset < HEADER.size:
                self._stop("the records end within a header", offset, self._end - offset)
                return
            place = Place(offset, *HEADER.unpack_from(file, offset))
            after = offset + place.size
            if place.size < HEADER.size:
                self._stop("bad size of a record", offset, place.size)
                return
            if place.number in (_AUXTRACE, _TRACING_DATA) and after <= self._end:
                after += self._data_behind(place)
            if after > self._end:
                self._stop("a record passes the end of the records", offset, after - offset)
                return
            yield place
            offset = after

    def _data_behind(self, place: Place) -> int:
        """Bytes behind the record that its size does not count."""
        fixed = records.TABLE[place.number].layout.fixed
        if place.size < HEADER.size + fixed.size:
            raise PerfDataError(
                "a record is too short", source=self._source, offset=place.offset, value=place.size
            )
        length: int = fixed.unpack_from(self._file, place.offset + HEADER.size)[0]
        return length if place.number == _AUXTRACE else (length + 7) & ~7

    def _stop(self, message: str, offset: int, value: int) -> None:
        """No whole record at `offset`: expected of a file that was cut, an error in another."""
        if not self._cut:
            raise PerfDataError(message, source=self._source, offset=offset, value=value)
        self.note(f"{message} at offset {offset:#x} ({value:#x})")
        self._end = offset
