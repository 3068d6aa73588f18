"""The AUX data of a file: how it was made, and where its pieces are.

AUXTRACE_INFO's private words for Intel PT are those of perf's intel_pt_info_fill; older files have
fewer.

Where a file has its AUX data: behind AUXTRACE records, and in samples.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple

from rtit.errors import PerfDataError
from rtit.perfdata import records
from rtit.perfdata.attr import SampleType, config_mask
from rtit.perfdata.clock import TimeConversion
from rtit.perfdata.features import Event
from rtit.perfdata.file_scan import Behind
from rtit.perfdata.files import Part
from rtit.perfdata.records import Cursor, IdIndex, text
from rtit.perfdata.samples import Decoder, SampleLayouts, aux_data

INTEL_PT = 1
"""AUXTRACE_INFO.kind of Intel PT."""

_WORDS = 17
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class IntelPtInfo:
    """AUXTRACE_INFO of Intel PT: 17 words, the address filter, and one word more in newer files.

    The `_bit` fields are masks of attr.config. `tsc_ctc_n`/`tsc_ctc_d` is EBX/EAX of CPUID.15H, TSC
    ticks per crystal tick; 0 if unknown. `mtc_freq_bits` is the mask of mtc_period.
    `have_sched_switch`: 0 none, 1 samples of sched:sched_switch, 2 SWITCH, 3 SWITCH_CPU_WIDE.
    """

    pmu_type: int = 0
    time_shift: int = 0
    time_mult: int = 0
    time_zero: int = 0
    cap_user_time_zero: int = 0
    tsc_bit: int = 0
    noretcomp_bit: int = 0
    have_sched_switch: int = 0
    snapshot_mode: int = 0
    per_cpu_mmaps: int = 0
    mtc_bit: int = 0
    mtc_freq_bits: int = 0
    tsc_ctc_n: int = 0
    tsc_ctc_d: int = 0
    cyc_bit: int = 0
    max_nonturbo_ratio: int = 0
    filter: str | None = None
    cap_event_trace: int = 0

    @classmethod
    def of_recording(
        cls,
        *,
        pmu_type: int,
        time: TimeConversion,
        tsc_ctc: tuple[int, int],
        max_nonturbo_ratio: int,
        mtc_freq_bits: int,
        filter: str | None,  # noqa: A002 - perf's name for it
        cap_event_trace: bool,
        snapshot: bool = False,
        have_sched_switch: int = 0,
    ) -> IntelPtInfo:
        """What our own recordings say: one buffer a thread, or a CPU if there are switches;
        everything decodable in time.
        """
        return cls(
            pmu_type=pmu_type,
            time_shift=time.shift,
            time_mult=time.mult,
            time_zero=time.zero,
            cap_user_time_zero=1,
            tsc_bit=config_mask("tsc"),
            noretcomp_bit=config_mask("noretcomp"),
            have_sched_switch=have_sched_switch,
            snapshot_mode=int(snapshot),
            per_cpu_mmaps=int(have_sched_switch != 0),
            mtc_bit=config_mask("mtc"),
            mtc_freq_bits=mtc_freq_bits,
            tsc_ctc_n=tsc_ctc[0],
            tsc_ctc_d=tsc_ctc[1],
            cyc_bit=config_mask("cyc"),
            max_nonturbo_ratio=max_nonturbo_ratio,
            filter=filter or None,
            cap_event_trace=int(cap_event_trace),
        )

    @classmethod
    def decode(cls, at: Cursor) -> IntelPtInfo:
        """Read the private words. Raises PerfDataError where the filter does not fit the record."""
        words = [at.unpack(_U64)[0] for _ in range(min(_WORDS, at.left // 8))]
        filter_size = words.pop() if len(words) == _WORDS else 0
        expression = None
        if filter_size:
            if filter_size >= at.left:
                raise at.fail(f"the filter does not fit {at.left} bytes", filter_size)
            expression = text(at.take(_padded(filter_size))[:filter_size])
        names = [field.name for field in fields(cls)]
        values: dict[str, int] = dict(zip(names, words, strict=False))
        more = at.unpack(_U64)[0] if at.left >= 8 else 0
        return cls(**values, filter=expression, cap_event_trace=more)

    def encode(self) -> bytes:
        """The private words."""
        expression = os.fsencode(self.filter or "")
        values = [getattr(self, field.name) for field in fields(self)][: _WORDS - 1]
        out = struct.pack(f"<{_WORDS}Q", *values, len(expression))
        if expression:
            out += expression.ljust(_padded(len(expression)), b"\0")
        return out + _U64.pack(self.cap_event_trace)

    @property
    def time_conversion(self) -> TimeConversion | None:
        """TSC <-> perf clock; None if the machine did not offer it or the numbers cannot be
        inverted.
        """
        if not self.cap_user_time_zero:
            return None
        try:
            return TimeConversion(self.time_shift, self.time_mult, self.time_zero)
        except ValueError:
            return None

    def mtc_period(self, config: int) -> int:
        """MTCFreq that attr.config selects, 0..15; 0 where the mask is empty (no MTC)."""
        mask = self.mtc_freq_bits
        return (config & mask) // (mask & -mask) if mask else 0


def _padded(size: int) -> int:
    """The bytes that a filter of `size` characters takes: with a NUL, in words."""
    return (size + 8) & ~7


class Queue(NamedTuple):
    """Whose trace a stream is: a CPU's (tid -1) or a thread's (cpu -1)."""

    cpu: int
    tid: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One AUXTRACE record's data.

    `data` views the file, `file_offset` is its place there, or in another `part` of the recording
    than the first (see `parts`); `aux_offset` its place in the stream of
    its buffer, in bytes. Pieces follow each other in the stream, but for up to 7 bytes of padding
    (PT's PAD is 0) at the end of each, and, in snapshot mode, for stretches that two pieces both
    hold. `reference` is the TSC when it was written.
    """

    file_offset: int
    aux_offset: int
    reference: int
    idx: int
    tid: int
    cpu: int
    data: memoryview
    part: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)


_Who = tuple[int | None, int | None]
_BUFFERS, _OF_BUFFER = 1 << 14, 1 << 13
_PIECES, _OF_PIECE = 1 << 16, 1 << 10
"""So many are kept of any file, and one more for so many bytes that it has: the file has room for
one in a hundred bytes.
"""
_KEPT_OF_BUFFER, _KEPT_OF_PIECE = 3 << 10, 576
"""Bytes that each takes, about; a buffer with all that is known of its stream."""


class Queues:
    """The pieces of every buffer, of parts that have `size` bytes together."""

    def __init__(self, size: int, source: str) -> None:
        self.found: dict[Queue, list[Piece]] = {}
        self.beyond = 0
        """Bytes in buffers beyond those that are kept."""
        self._buffers = _BUFFERS + size // _OF_BUFFER
        self._pieces = self._most_pieces = _PIECES + size // _OF_PIECE
        self._source = source

    def add(self, queue: Queue, piece: Piece) -> None:
        """Raises PerfDataError for more pieces than are kept of a file of the size."""
        own = self.found.get(queue)
        if own is None:
            if len(self.found) >= self._buffers:
                self.beyond += piece.size
                return
            own = self.found[queue] = []
        self._pieces -= 1
        if self._pieces < 0:
            message = f"more than {self._most_pieces:,} pieces of AUX data in a file of its size"
            raise PerfDataError(message, source=self._source, offset=piece.file_offset)
        own.append(piece)


def size_of(parts: Iterable[Part]) -> int:
    """Bytes, of all parts."""
    return sum(len(part.view) for part in parts)


def kept_of(found: Mapping[Queue, Sequence[Piece]]) -> int:
    """Bytes that these take, about, and what is known of their streams."""
    return _KEPT_OF_BUFFER * len(found) + _KEPT_OF_PIECE * sum(map(len, found.values()))


def buffers(parts: Sequence[Part], layouts: SampleLayouts, source: str, behind: Behind) -> Queues:
    """The data of AUXTRACE records, in the order of the file. `behind` follows the first part,
    which is the file.
    """
    queues = Queues(size_of(parts), source)
    for number, part in enumerate(parts):
        decoder = Decoder(part.view, layouts, source)
        for place in part.scan.noted[records.Auxtrace.layout.number]:
            if number == 0:
                behind.at(place.offset)
            record = decoder.as_type(records.Auxtrace, place)
            start = place.offset + place.size
            queue = Queue(record.cpu, -1) if record.cpu >= 0 else Queue(-1, record.tid)
            queues.add(
                queue,
                Piece(
                    file_offset=start,
                    aux_offset=record.aux_offset,
                    reference=record.reference,
                    idx=record.idx,
                    tid=record.tid,
                    cpu=record.cpu,
                    data=part.view[start : start + record.length],
                    part=number,
                ),
            )
    return queues


def in_samples(events: Iterable[Event]) -> bool:
    """Whether samples of any event carry AUX data."""
    return any(
        event.attr.sample_type & SampleType.AUX and event.attr.aux_sample_size for event in events
    )


def samples(
    parts: Sequence[Part],
    layouts: SampleLayouts,
    source: str,
    events: Sequence[Event],
    ids: Ids,
    convert: TimeConversion | None,
) -> Queues:
    """The AUX data of samples, in the order of the file; a sample's buffer is that of its id, if
    `ids` knows it, else that of its CPU or thread.
    """
    queues = Queues(size_of(parts), source)
    for number, part in enumerate(parts):
        decoder = Decoder(part.view, layouts, source)
        for place in part.scan.walk():
            if place.number != records.SAMPLE:
                continue
            start, record = decoder.sample_body(place)
            if record is None or record.sample_id is None:
                continue
            body = part.view[start : place.offset + place.size]
            data = aux_data(events[record.event].attr, body)
            if data is None:
                continue
            who = record.sample_id
            cpu, tid = ids.get(who.id or 0, (who.cpu, who.tid))
            queue = Queue(cpu, -1) if cpu is not None and cpu >= 0 else Queue(-1, tid or 0)
            ticks = convert.to_tsc(who.time) if convert is not None and who.time else 0
            queues.add(
                queue,
                Piece(
                    file_offset=start,
                    aux_offset=0,
                    reference=ticks,
                    idx=0,
                    tid=queue.tid,
                    cpu=queue.cpu,
                    data=data,
                    part=number,
                ),
            )
    return queues


class Ids:
    """Of event ids the CPU and the thread that ID_INDEX has for them, -1 each: any."""

    def __init__(self, index: Iterable[IdIndex] = ()) -> None:
        self._ids, self._cpus, self._tids = array("Q"), array("q"), array("q")
        for record in index:
            for number, _, cpu, tid in record.entries:
                if cpu >= 0 or tid >= 0:
                    self._ids.append(number)
                    self._cpus.append(cpu)
                    self._tids.append(tid)
        if any(before > after for before, after in pairwise(self._ids)):
            order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
            for column in (self._ids, self._cpus, self._tids):
                column[:] = array(column.typecode, [column[place] for place in order])

    def get(self, number: int, otherwise: _Who) -> _Who:
        """Of an id that is there several times the last."""
        place = bisect_right(self._ids, number) - 1
        if place < 0 or self._ids[place] != number:
            return otherwise
        return self._cpus[place], self._tids[place]
