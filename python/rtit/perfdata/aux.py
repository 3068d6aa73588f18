"""AUX data of a perf.data file: how it was traced, and where its bytes are.

`IntelPtInfo` is the AUXTRACE_INFO record of Intel PT; its words are those of perf's
intel_pt_info_fill. The trace itself is in *chunks*: after an AUXTRACE record, or, with `perf record
--aux-sample`, inside of a SAMPLE. The chunks of one CPU or one thread form the *buffer* that is
decoded as one stream. `read_auxtrace_chunks` and `read_sample_chunks` list the chunks of every
buffer without copying them. Their number is bounded by the size of the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import PerfDataError
from rtit.perfdata import records
from rtit.perfdata.attr import SampleType
from rtit.perfdata.clock import TimeConversion
from rtit.perfdata.features import Event
from rtit.perfdata.file_scan import PageReleaser
from rtit.perfdata.recording_files import RecordingFile
from rtit.perfdata.records import Cursor, IdIndex, decode_text
from rtit.perfdata.samples import RecordDecoder, SampleLayouts, aux_data

if TYPE_CHECKING:
    from rtit.perfdata.sparse_copy import LoadedOnUse

INTEL_PT = 1
"""AUXTRACE_INFO.kind of Intel PT."""

_WORDS = 17
_MAX_IDS = 1 << 20
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class IntelPtInfo:
    """AUXTRACE_INFO of Intel PT: 17 words, the address filter, and one more word in newer files.

    The `_bit` fields are masks of attr.config. `tsc_ctc_n`/`tsc_ctc_d` is EBX/EAX of CPUID.15H, TSC
    ticks per crystal tick; 0 if unknown. `mtc_freq_bits` is the mask of mtc_period.
    `have_sched_switch`: 0 none, 1 samples of sched:sched_switch, 2 SWITCH, 3 SWITCH_CPU_WIDE.
    Older files have fewer words; the fields without a word are 0.
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
    def decode(cls, at: Cursor) -> IntelPtInfo:
        """Return the values of a record. Raises PerfDataError if the filter exceeds the record."""
        words = [at.unpack_struct(_U64)[0] for _ in range(min(_WORDS, at.remaining // 8))]
        filter_size = words.pop() if len(words) == _WORDS else 0
        expression = None
        if filter_size:
            if filter_size >= at.remaining:
                raise at.error(f"the filter does not fit {at.remaining} bytes", filter_size)
            expression = decode_text(at.read(_padded_filter_size(filter_size))[:filter_size])
        names = [field.name for field in fields(cls)]
        values: dict[str, int] = dict(zip(names, words, strict=False))
        cap_event_trace = at.unpack_struct(_U64)[0] if at.remaining >= 8 else 0
        return cls(**values, filter=expression, cap_event_trace=cap_event_trace)

    def encode(self) -> bytes:
        """Return the words as AUXTRACE_INFO has them."""
        expression = os.fsencode(self.filter or "")
        values = [getattr(self, field.name) for field in fields(self)][: _WORDS - 1]
        out = struct.pack(f"<{_WORDS}Q", *values, len(expression))
        if expression:
            out += expression.ljust(_padded_filter_size(len(expression)), b"\0")
        return out + _U64.pack(self.cap_event_trace)

    @property
    def time_conversion(self) -> TimeConversion | None:
        """TSC <-> perf clock; None if the machine had none or the numbers cannot be inverted."""
        if not self.cap_user_time_zero:
            return None
        try:
            return TimeConversion(self.time_shift, self.time_mult, self.time_zero)
        except ValueError:
            return None

    def mtc_period(self, config: int) -> int:
        """Return the MTCFreq that attr.config selects, 0..15; 0 if the CPU has no MTC."""
        mask = self.mtc_freq_bits
        return (config & mask) // (mask & -mask) if mask else 0


def _padded_filter_size(size: int) -> int:
    """Bytes of a filter of `size` characters: with a NUL, rounded up to 8."""
    return (size + 8) & ~7


class AuxBuffer(NamedTuple):
    """Names a buffer: that of a CPU (tid -1) or of a thread (cpu -1)."""

    cpu: int
    tid: int


@dataclass(frozen=True, slots=True)
class AuxChunk:
    """A contiguous part of a buffer's trace: the data of one AUXTRACE record or one sample.

    `data` is a view of the file, at `file_offset` of file `file_index` of the recording; slices of
    it are views also if the file is remote. It is at `aux_offset` bytes of the buffer's stream.
    Chunks follow each other in the stream, except that each can end with up to 7 bytes of padding
    (PAD packets, which are 0), and that snapshots can overlap. `reference` is the TSC when the
    chunk was written.
    """

    file_offset: int
    aux_offset: int
    reference: int
    idx: int
    tid: int
    cpu: int
    data: memoryview | LoadedOnUse
    file_index: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)


_MIN_BUFFERS, _BYTES_PER_BUFFER = 1 << 14, 1 << 13
_MIN_CHUNKS, _BYTES_PER_CHUNK = 1 << 16, 1 << 10
"""A file can have this many, and one more for each so many bytes of its size."""


class AuxChunks:
    """Collects the chunks of each buffer, as many as a recording of `size` bytes can have."""

    def __init__(self, size: int, source: str) -> None:
        self.by_buffer: dict[AuxBuffer, list[AuxChunk]] = {}
        self.dropped_bytes = 0
        """Bytes of the buffers that were too many to keep."""
        self._max_buffers = _MIN_BUFFERS + size // _BYTES_PER_BUFFER
        self._max_chunks = _MIN_CHUNKS + size // _BYTES_PER_CHUNK
        self._count = 0
        self._source = source

    def add_chunk(self, buffer: AuxBuffer, chunk: AuxChunk) -> None:
        """Add the next chunk of a buffer. Raises PerfDataError if there are too many chunks."""
        chunks = self.by_buffer.get(buffer)
        if chunks is None:
            if len(self.by_buffer) >= self._max_buffers:
                self.dropped_bytes += chunk.size
                return
            chunks = self.by_buffer[buffer] = []
        self._count += 1
        if self._count > self._max_chunks:
            message = f"more than {self._max_chunks:,} pieces of AUX data in a file of its size"
            raise PerfDataError(message, source=self._source, offset=chunk.file_offset)
        chunks.append(chunk)


def total_size(files: Iterable[RecordingFile]) -> int:
    """Return the size of all files together, in bytes."""
    return sum(len(file.view) for file in files)


def read_auxtrace_chunks(
    files: Sequence[RecordingFile], layouts: SampleLayouts, source: str, releaser: PageReleaser
) -> AuxChunks:
    """Return the data of the AUXTRACE records, in file order. `releaser` is that of file 0."""
    chunks = AuxChunks(total_size(files), source)
    for file_index, file in enumerate(files):
        decoder = RecordDecoder(file.view, layouts, source)
        for header in file.scan.indexed[records.Auxtrace.layout.number]:
            if file_index == 0:
                releaser.advance_to(header.offset)
            record = decoder.decode_as(records.Auxtrace, header)
            start = header.offset + header.size
            chunks.add_chunk(
                AuxBuffer(record.cpu, -1) if record.cpu >= 0 else AuxBuffer(-1, record.tid),
                AuxChunk(
                    file_offset=start,
                    aux_offset=record.aux_offset,
                    reference=record.reference,
                    idx=record.idx,
                    tid=record.tid,
                    cpu=record.cpu,
                    data=file.aux_data(start, start + record.length),
                    file_index=file_index,
                ),
            )
    return chunks


def samples_have_aux(events: Iterable[Event]) -> bool:
    """Return whether the samples of any event contain AUX data."""
    return any(
        event.attr.sample_type & SampleType.AUX and event.attr.aux_sample_size for event in events
    )


def read_sample_chunks(
    files: Sequence[RecordingFile],
    layouts: SampleLayouts,
    source: str,
    events: Sequence[Event],
    ids: Mapping[int, tuple[int, int]],
    conversion: TimeConversion | None,
) -> AuxChunks:
    """Return the AUX data in samples, in file order.

    The sample's event id selects the buffer if `ids` has the id, else the sample's CPU or thread.
    """
    chunks = AuxChunks(total_size(files), source)
    for file_index, file in enumerate(files):
        decoder = RecordDecoder(file.view, layouts, source)
        for header in file.scan.iterate_headers():
            if header.type != records.SAMPLE:
                continue
            start, record = decoder.decode_sample_head(header)
            if record is None or record.sample_id is None:
                continue
            body = file.view[start : header.offset + header.size]
            data = aux_data(events[record.event].attr, body)
            if data is None:
                continue
            sample_id = record.sample_id
            cpu, tid = ids.get(sample_id.id or 0, (sample_id.cpu, sample_id.tid))
            buffer = AuxBuffer(cpu, -1) if cpu is not None and cpu >= 0 else AuxBuffer(-1, tid or 0)
            time = sample_id.time
            reference = conversion.to_tsc(time) if conversion is not None and time else 0
            chunks.add_chunk(
                buffer,
                AuxChunk(
                    file_offset=start,
                    aux_offset=0,
                    reference=reference,
                    idx=0,
                    tid=buffer.tid,
                    cpu=buffer.cpu,
                    data=data,
                    file_index=file_index,
                ),
            )
    return chunks


def index_event_ids(index: Iterable[IdIndex], source: str) -> dict[int, tuple[int, int]]:
    """Return (cpu, tid) of each event id, from its last entry that names one; -1: any.

    Raises PerfDataError if there are more ids than any recording has.
    """
    found: dict[int, tuple[int, int]] = {}
    for record in index:
        for event_id, _, cpu, tid in record.entries:
            if cpu >= 0 or tid >= 0:
                found[event_id] = cpu, tid
        if len(found) > _MAX_IDS:
            message = f"ID_INDEX has more than {_MAX_IDS:,} ids"
            raise PerfDataError(message, source=source, offset=record.offset, value=len(found))
    return found
