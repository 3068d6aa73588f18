"""Reading perf.data files: of perf, of rtit, and of recorders that were killed.

`PerfData` maps a file and walks over its records once, by their sizes. Everything else is decoded
on demand: records one by one, AUX data as views of the file, features when a property is read. So
memory does not grow with the file. All offsets and sizes are checked against the file; everything
that can be of any number has a limit.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, BinaryIO, Self, TypeVar

from rtit.errors import PerfDataError, UnsupportedError
from rtit.perfdata import aux, records
from rtit.perfdata.attr import MIN_ATTR_SIZE, Attr
from rtit.perfdata.aux import INTEL_PT, AuxBuffer, AuxChunk, IntelPtInfo
from rtit.perfdata.clock import TimeConversion
from rtit.perfdata.features import (
    Event,
    Feature,
    WallClock,
    parse_facts,
    unpack_events,
    unpack_pmus,
    unpack_strings,
    unpack_wall_clock,
)
from rtit.perfdata.file_scan import (
    MAX_RECORD_SIZE,
    SECTION_ENTRY,
    FileHeader,
    PageReleaser,
    RecordHeader,
    RecordScan,
    check_not_truncated,
)
from rtit.perfdata.recording_files import (
    RecordingFile,
    decompress_records,
    list_record_files,
    map_recording,
    open_record_file,
)
from rtit.perfdata.records import RECORD_HEADER, BuildId, Cursor, Record, bpf_code
from rtit.perfdata.samples import RecordDecoder, SampleLayouts

if TYPE_CHECKING:
    from rtit.perfdata.sparse_copy import SparseCopy
    from rtit.remote_files import RemoteFile

_HEADER_ATTR = records.HeaderAttr.layout.number
_U64 = struct.Struct("<Q")
_BLOCK_SIZE = 1 << 20
_MAX_ATTRS = 1 << 16
_MAX_IDS = 1 << 20
"""Of all attrs together. Their sections can overlap and lie in a hole of the file."""
_MAX_GUEST_IDS = 1 << 16
_MAX_GUESTS = 1 << 10


_Indexed = TypeVar("_Indexed", bound=Record)


class PerfData:
    """A perf.data file: a file, a pipe, or a directory of `perf record --threads`.

    `path` is a path, a URL (`rtit.remote_files`) or a binary file open for reading; `name` is used
    for it in messages. Compressed records (`perf record -z`) are decompressed. If a file was cut or
    its recorder was killed, its complete records are read, and `incomplete` gives the reason.

    `events` are the attrs with their ids and names. `info` is the AUXTRACE_INFO record, None
    without AUX data. `modified` is the time of the last change, in seconds since 1970.

    Raises PerfDataError (with offset and value) if the file is not perf.data or contradicts itself,
    UnsupportedError for big-endian files and for AUX data that is not Intel PT.
    """

    def __init__(self, path: str | os.PathLike[str] | BinaryIO, *, name: str | None = None) -> None:
        self.path, self._map, self.modified, self._folder, self._copy = map_recording(path)
        self.path = name or self.path
        self._file = memoryview(self._map)
        self._files: list[RecordingFile] = []
        self.closed = False
        self._dropped_bytes: dict[str, int] = {}
        try:
            self.header = FileHeader.decode(self._file, self.path)
            self._load_all_but_records()
            self._scan = RecordScan(self._file, self.header, self.path, self._record_loader)
            self._files = [
                RecordingFile(self._map, self._file, self._scan, self._copy),
                *self._record_files_after_first(),
            ]
            self._feature_ranges = {**self._scan.features, **self._read_feature_table()}
            attrs = self._read_attrs()
            self._layouts = SampleLayouts(attrs)
            self._decoder = RecordDecoder(self._file, self._layouts, self.path)
            self.events = self._name_events(attrs)
            self.info = self._read_auxtrace_info()
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> str | None:
        """The directory of the recording; None if it is a file."""
        return self._folder

    @property
    def remote(self) -> RemoteFile | None:
        """The file if it is read by URL; None if it is local."""
        return self._copy.remote if self._copy is not None else None

    def blocks(self) -> Iterator[memoryview]:
        """All bytes of the file with the header, in blocks. A block is valid until the next one."""
        releaser = self.page_releaser()
        for start in range(0, len(self._file), _BLOCK_SIZE):
            releaser.advance_to(start)
            if self._copy is not None:
                self._copy.load(start, start + _BLOCK_SIZE)
            yield self._file[start : start + _BLOCK_SIZE]

    @property
    def incomplete(self) -> str | None:
        """One sentence that says why the file ends early; None if it is complete."""
        reasons = (file.scan.incomplete for file in self._files)
        return next((reason for reason in reasons if reason is not None), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file. Views that callers have stay valid and keep it mapped until they are
        gone.
        """
        self.closed = True
        for mapped, view in ((self._map, self._file), *(file[:2] for file in self._files)):
            with suppress(BufferError):
                view.release()
                mapped.close()

    def page_releaser(self, file_index: int = 0) -> PageReleaser:
        """Return a releaser for a caller that reads a file (`AuxChunk.file_index`) sequentially."""
        release = partial(_release_pages, self._files[file_index].map if file_index else self._map)
        return PageReleaser(release, self.check_not_truncated)

    def check_not_truncated(self) -> None:
        """Raise PerfDataError if a file of the recording has become shorter."""
        check_not_truncated(self._map, len(self._file), self.path)
        for file in self._files[1:]:
            check_not_truncated(file.map, len(file.view), self.path)

    def release_pages(self) -> None:
        """Release all pages of the recording; they are read again when they are needed."""
        for file in self._files:
            file.map.madvise(mmap.MADV_DONTNEED)

    # Records

    def records(self) -> Iterator[Record]:
        """Yield all records, in file order. A type without a class is a `records.RawRecord`.

        The other files of a directory and decompressed records come last. Raises PerfDataError for
        a record that is too short for its type.
        """
        for records_of_file in self.records_by_file():
            yield from records_of_file

    def records_by_file(self) -> Iterator[Iterator[Record]]:
        """Return the same records, one iterator for each file of the recording."""
        return (file.records(self._layouts, self.path) for file in self._files)

    def record_at(self, file_index: int, offset: int) -> Record:
        """Return the record that `records_by_file` found at an offset of a file.

        Raises PerfDataError if the file has changed.
        """
        view = self._files[file_index].view
        header = RecordHeader(offset, *RECORD_HEADER.unpack_from(view, offset))
        if not RECORD_HEADER.size <= header.size <= len(view) - offset:
            raise header.error("the file changed while it was read", self.path)
        return RecordDecoder(view, self._layouts, self.path).decode(header)

    def auxtrace_buffers(self) -> dict[AuxBuffer, list[AuxChunk]]:
        """Return the chunks of AUX data of each CPU or thread, in file order, without copying them.

        If the file has too many buffers, those after the limit are dropped (`dropped_bytes`).
        Raises PerfDataError if it has too many chunks.
        """
        chunks = aux.read_auxtrace_chunks(
            self._files, self._layouts, self.path, self.page_releaser()
        )
        self._dropped_bytes["buffers"] = chunks.dropped_bytes
        return chunks.by_buffer

    @property
    def dropped_bytes(self) -> int:
        """Bytes of AUX data that `auxtrace_buffers` and `aux_samples` dropped so far."""
        return sum(self._dropped_bytes.values())

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return aux.total_size(self._files)

    @cached_property
    def has_aux_samples(self) -> bool:
        """Whether samples contain AUX data (`perf record --aux-sample`)."""
        return aux.samples_have_aux(self.events)

    def aux_samples(self) -> dict[AuxBuffer, list[AuxChunk]]:
        """Return the AUX data in samples, one chunk for each, like `auxtrace_buffers`.

        A chunk is the last content of a buffer when the sample was taken. Its `aux_offset` is 0:
        the file does not have it.
        """
        if not self.has_aux_samples:
            return {}
        chunks = aux.read_sample_chunks(
            self._files,
            self._layouts,
            self.path,
            self.events,
            aux.index_event_ids(self._decode_indexed_records(records.IdIndex), self.path),
            self.time_conversion,
        )
        self._dropped_bytes["samples"] = chunks.dropped_bytes
        return chunks.by_buffer

    @cached_property
    def pebs_counters(self) -> dict[int, Event]:
        """Counter -> the last event that wrote PEBS records into the trace (AUX_OUTPUT_HW_ID)."""
        found: dict[int, Event] = {}
        by_id = {event_id: event for event in self.events for event_id in event.ids}
        for header in self._scan.indexed[records.AuxOutputHwId.layout.number]:
            record = self._decoder.decode(header)
            event_id = record.sample_id.id if record.sample_id is not None else None
            if isinstance(record, records.AuxOutputHwId) and event_id in by_id:
                found[record.hw_id] = by_id[event_id]
        return found

    @cached_property
    def guest_ids(self) -> dict[int, tuple[int, int]]:
        """Event id -> (pid of the machine's process, vcpu), for events of virtual machines.

        The file has them after `perf inject --guest-data`. pid, tid and cpu in the records of these
        events are those of the guest. Raises PerfDataError for more than 65,536 ids or more than
        1,024 machines: without an id, a guest's record would pass for one of the host.
        """
        found: dict[int, tuple[int, int]] = {}
        machines: set[int] = set()
        for record in self._decode_indexed_records(records.IdIndex):
            found |= {event_id: (machine, vcpu) for event_id, machine, vcpu in record.machines}
            machines |= {machine for _, machine, _ in record.machines}
            if len(found) > _MAX_GUEST_IDS:
                message = f"events of virtual machines beyond {_MAX_GUEST_IDS:,}"
                raise self._error_at_offset(message, record.offset, len(found))
            if len(machines) > _MAX_GUESTS:
                message = f"virtual machines beyond {_MAX_GUESTS:,}"
                raise self._error_at_offset(message, record.offset, len(machines))
        return found

    @cached_property
    def guest_cpus(self) -> dict[tuple[int, int], int]:
        """(pid, tid) of a virtual machine's thread on the host -> the vcpu that the thread is."""
        found: dict[tuple[int, int], int] = {}
        if not self.guest_ids:  # raises if there are too many
            return found
        for record in self._decode_indexed_records(records.IdIndex):
            threads = {event_id: tid for event_id, _, _, tid in record.entries}
            found |= {(pid, threads[event_id]): vcpu for event_id, pid, vcpu in record.machines}
        return found

    # Features and other data about the recording

    @property
    def intel_pt(self) -> Event | None:
        """The Intel PT event, which has the PMU of AUXTRACE_INFO; None without AUX data."""
        if self.info is None:
            return None
        return next((e for e in self.events if e.attr.type == self.info.pmu_type), None)

    @cached_property
    def time_conversion(self) -> TimeConversion | None:
        """TSC ticks <-> ns of the perf clock; None if the file does not have it."""
        found = self.info.time_conversion if self.info else None
        for record in self._decode_indexed_records(records.TimeConv):
            if found is None:
                try:
                    numbers = (record.time_shift, record.time_mult, record.time_zero)
                    found = TimeConversion(*numbers, *(record.short or ()))
                except ValueError:
                    continue
        return found

    @cached_property
    def wall_clock(self) -> WallClock | None:
        """The time of day (`perf record -k`); None if the file does not have it.

        Raises PerfDataError if the section is cut.
        """
        at = self._feature_cursor(Feature.CLOCK_DATA)
        return unpack_wall_clock(at) if at else None

    @cached_property
    def features(self) -> frozenset[int]:
        """The numbers of all features in the file; see `features.Feature`."""
        return frozenset(self._feature_ranges)

    def feature(self, number: int) -> memoryview | None:
        """Return the bytes of a feature, from its section or record; None if the file lacks it."""
        if number not in self._feature_ranges:
            return None
        offset, size = self._feature_ranges[number]
        return self._file[offset : offset + size]

    @property
    def hostname(self) -> str | None:
        """The machine's name."""
        return self._feature_string(Feature.HOSTNAME)

    @property
    def release(self) -> str | None:
        """The kernel's release."""
        return self._feature_string(Feature.OSRELEASE)

    @property
    def version(self) -> str | None:
        """The version of the program that wrote the file."""
        return self._feature_string(Feature.VERSION)

    @property
    def arch(self) -> str | None:
        """The machine's architecture, such as x86_64."""
        return self._feature_string(Feature.ARCH)

    @property
    def cpuid(self) -> str | None:
        """vendor,family,model,stepping. Decoders need it for errata."""
        return self._feature_string(Feature.CPUID)

    @property
    def cpu_description(self) -> str | None:
        """The CPU's name; in files of rtit, its facts."""
        return self._feature_string(Feature.CPUDESC)

    @property
    def facts(self) -> dict[str, str]:
        """The facts of a recording by rtit (profile, time model, exit status ...); else empty."""
        return parse_facts(self.cpu_description or "")

    @cached_property
    def command_line(self) -> list[str]:
        """The recorder's arguments; empty if the file does not have them."""
        at = self._feature_cursor(Feature.CMDLINE)
        return unpack_strings(at) if at else []

    @cached_property
    def pmus(self) -> dict[int, str]:
        """attr.type -> name of the PMU."""
        at = self._feature_cursor(Feature.PMU_MAPPINGS)
        return unpack_pmus(at) if at else {}

    @property
    def build_ids(self) -> dict[str, bytes]:
        """Path -> build id of the recorded files."""
        return {each.path: each.build_id for each in self._build_ids if not _is_of_guest(each)}

    @property
    def guest_build_ids(self) -> dict[tuple[int, str], bytes]:
        """(pid of a virtual machine, path) -> build id of the recorded files of guests."""
        found = filter(_is_of_guest, self._build_ids)
        return {(each.pid, each.path): each.build_id for each in found}

    @cached_property
    def _build_ids(self) -> list[BuildId]:
        headers = list(self._scan.indexed[records.BuildId.layout.number])
        start, size = self._feature_ranges.get(Feature.BUILD_ID, (0, 0))
        end = start + size
        while end - start >= RECORD_HEADER.size:
            header = RecordHeader(start, *RECORD_HEADER.unpack_from(self._file, start))
            if not RECORD_HEADER.size <= header.size <= end - start:
                raise self._error_at_offset("bad size of a build id", start, header.size)
            headers.append(header)
            start += header.size
        return [self._decoder.decode_as(records.BuildId, header) for header in headers]

    def bpf_code(self) -> Iterator[tuple[int, bytes]]:
        """(kernel address, code) of each function of a BPF program that the file has.

        Raises PerfDataError if the section contradicts itself.
        """
        at = self._feature_cursor(Feature.BPF_PROG_INFO)
        return bpf_code(at) if at else iter(())

    # Private

    def _decode_indexed_records(self, cls: type[_Indexed]) -> Iterator[_Indexed]:
        """Yield the indexed records of a class without sample_id."""
        for header in self._scan.indexed[cls.layout.number]:
            yield self._decoder.decode_as(cls, header)

    def _record_loader(self) -> PageReleaser:
        if self._copy is None:
            return self.page_releaser()
        release = partial(_release_pages, self._map)
        return _RecordLoader(self._copy, release, self.check_not_truncated)

    def _load_all_but_records(self) -> None:
        """Load the parts of a remote file that are not loaded as records."""
        if self._copy is not None:
            records_section = self.header.data
            self._copy.load(0, records_section.offset)
            if records_section.size:
                self._copy.load(records_section.end, len(self._file))

    def _record_files_after_first(self) -> Iterator[RecordingFile]:
        found = [RecordingFile(self._map, self._file, self._scan)]
        if self._folder is not None:
            found += filter(
                None,
                (open_record_file(path, self.path) for path in list_record_files(self._folder)),
            )
            yield from found[1:]
        for file in found:
            decompressed = decompress_records(file.view, file.scan, self.path)
            if decompressed is not None:
                yield decompressed

    def _error_at_offset(self, message: str, offset: int, value: object = None) -> PerfDataError:
        return PerfDataError(message, source=self.path, offset=offset, value=value)

    def _read_feature_table(self) -> dict[int, tuple[int, int]]:
        """Feature -> (offset, size) of its section.

        The table follows the records, with one entry for each set feature bit.
        """
        found: dict[int, tuple[int, int]] = {}
        file_size = len(self._file)
        for i, number in enumerate(self.header.features):
            at = self.header.data.end + i * SECTION_ENTRY.size
            if at + SECTION_ENTRY.size > file_size:
                message = f"the file has {file_size:,} bytes and ends within its feature table"
                self._scan.mark_incomplete(message)
                break
            offset, size = SECTION_ENTRY.unpack_from(self._file, at)
            if offset + size > file_size:
                self._scan.mark_incomplete(
                    f"feature {number} lies outside of the file at offset {offset:#x}"
                )
                continue
            found[number] = (offset, size)
        return found

    def _read_attrs(self) -> list[tuple[Attr, tuple[int, ...]]]:
        if self.header.attrs is None:
            return list(map(self._read_attr_record, self._scan.indexed[_HEADER_ATTR]))
        found = []
        bytes_left = min(8 * _MAX_IDS, len(self._file))
        entry = self.header.entry_size
        if self.header.attrs.size // entry > _MAX_ATTRS:
            raise self._error_at_offset(
                "more attrs than any recording has", 32, self.header.attrs.size
            )
        for start in range(self.header.attrs.offset, self.header.attrs.end, entry):
            ids_entry = start + entry - SECTION_ENTRY.size
            attr = Attr.decode(self._file[start:ids_entry])
            offset, size = SECTION_ENTRY.unpack_from(self._file, ids_entry)
            bytes_left -= size
            if offset + size > len(self._file) or size % 8 or bytes_left < 0:
                raise self._error_at_offset("bad section of an event's ids", ids_entry, size)
            found.append((attr, _unpack_u64_words(self._file[offset : offset + size])))
        return found

    def _read_attr_record(self, header: RecordHeader) -> tuple[Attr, tuple[int, ...]]:
        start, end = header.offset + RECORD_HEADER.size, header.offset + header.size
        size = Attr.decode(self._file[start:end]).size
        if not MIN_ATTR_SIZE <= size <= end - start:
            raise self._error_at_offset("bad size of an attr", header.offset, size)
        ids = self._file[start + size : end]
        return Attr.decode(self._file[start : start + size]), _unpack_u64_words(
            ids[: len(ids) // 8 * 8]
        )

    def _name_events(self, attrs: list[tuple[Attr, tuple[int, ...]]]) -> list[Event]:
        """Return the events, with names from EVENT_DESC, which has them in the same order."""
        at = self._feature_cursor(Feature.EVENT_DESC)
        named = unpack_events(at) if at else []
        return [
            Event(
                attr,
                ids,
                named[i].name if i < len(named) and named[i].attr.type == attr.type else "",
            )
            for i, (attr, ids) in enumerate(attrs)
        ]

    def _read_auxtrace_info(self) -> IntelPtInfo | None:
        record = next(self._decode_indexed_records(records.AuxtraceInfo), None)
        if record is None:
            return None
        if record.kind != INTEL_PT:
            raise UnsupportedError(f"{self.path}: AUX data of kind {record.kind} is not Intel PT")
        start = record.offset + RECORD_HEADER.size + record.layout.fixed.size
        data = memoryview(record.data)
        return IntelPtInfo.decode(Cursor(data, start, self.path, "AUXTRACE_INFO"))

    def _feature_cursor(self, number: Feature) -> Cursor | None:
        data = self.feature(number)
        if data is None:
            return None
        return Cursor(data, self._feature_ranges[number][0], self.path, f"HEADER_{number.name}")

    def _feature_string(self, number: Feature) -> str | None:
        at = self._feature_cursor(number)
        return at.read_string() if at else None


def _release_pages(mapped: mmap.mmap, start: int, end: int) -> None:
    start -= start % mmap.PAGESIZE
    if start < len(mapped):
        mapped.madvise(mmap.MADV_DONTNEED, start, end - start)


class _RecordLoader(PageReleaser):
    """Loads the records of a remote file while they are read."""

    def __init__(
        self,
        copy: SparseCopy,
        release: Callable[[int, int], None],
        check: Callable[[], None],
    ) -> None:
        super().__init__(release, check)
        self._copy = copy

    def advance_to(self, offset: int) -> None:
        self._copy.load(offset, offset + MAX_RECORD_SIZE)
        super().advance_to(offset)


def _unpack_u64_words(data: memoryview) -> tuple[int, ...]:
    return tuple(value for (value,) in _U64.iter_unpack(data))


def _is_of_guest(record: BuildId) -> bool:
    mode = record.misc & records.Misc.CPUMODE
    return record.pid > 0 and mode in (records.Misc.GUEST_KERNEL, records.Misc.GUEST_USER)
