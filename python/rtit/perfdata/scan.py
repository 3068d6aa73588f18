"""Walking over the records of a file by their sizes, and noting those that the rest depends on."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rtit.errors import PerfDataError

from . import records
from .header import Header
from .records import HEADER

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
