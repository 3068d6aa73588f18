"""Reading perf.data: files of perf, of rtit, and of recorders that were killed."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import BinaryIO, Self

from rtit.errors import PerfDataError, UnsupportedError
from rtit.perfdata import aux, records
from rtit.perfdata.attr import SMALLEST, Attr
from rtit.perfdata.aux import INTEL_PT, IntelPtInfo, Piece, Queue
from rtit.perfdata.clock import TimeConversion
from rtit.perfdata.features import (
    Event,
    Feature,
    WallClock,
    parse_facts,
    unpack_clocks,
    unpack_events,
    unpack_pmus,
    unpack_strings,
)
from rtit.perfdata.file_scan import SECTION, Behind, Header, Place, Scan, check_size
from rtit.perfdata.files import Part, bare, inflated, open_map, others
from rtit.perfdata.records import HEADER, BuildId, Cursor, Record, bpf_code
from rtit.perfdata.samples import Decoder, SampleLayouts

_HEADER_ATTR = records.HeaderAttr.layout.number
_U64 = struct.Struct("<Q")
_PART = 1 << 20
_MOST_ATTRS = 1 << 16
_MOST_IDS = 1 << 20
"""Of all attrs together: they may lie over each other, and in a hole of the file."""
_MOST_GUEST_IDS = 1 << 16
_MOST_GUESTS = 1 << 10


class PerfData:
    """A perf.data file, mapped and not read in: its memory does not grow with the file.

    Both forms are read: with a header and from a pipe; compressed ones, and directories (see
    `parts`). `path` may be a file that is open, or a pipe, see `opening`; `name` is what messages
    call it. Opening walks over the records once, by their sizes. Every offset and size is checked
    against the file. `modified` is when the file was, in seconds since 1970.

    `events` are the attrs with their ids and names, `info` is what AUXTRACE_INFO says (None without
    AUX data). Of a file that was cut, or whose recorder was killed, the whole records are read;
    `incomplete` tells.

    Raises PerfDataError (with offset and value) for what is no perf.data or contradicts itself,
    UnsupportedError for big-endian files, and AUX data that is not Intel PT.
    """

    def __init__(self, path: str | os.PathLike[str] | BinaryIO, *, name: str | None = None) -> None:
        self.path, self._map, self.modified, self._folder = open_map(path)
        self.path = name or self.path
        self._file = memoryview(self._map)
        self._parts: list[Part] = []
        self.closed = False
        self._beyond: dict[str, int] = {}
        try:
            self.header = Header.decode(self._file, self.path)
            self._scan = Scan(self._file, self.header, self.path, self.behind)
            self._parts = [Part(self._map, self._file, self._scan), *self._other_parts()]
            self._places = {**self._scan.features, **self._read_feature_table()}
            attrs = self._read_attrs()
            self._layouts = SampleLayouts(attrs)
            self._decoder = Decoder(self._file, self._layouts, self.path)
            self.events = self._name(attrs)
            self.info = self._read_info()
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> str | None:
        """The directory that the recording is, None if it is a file."""
        return self._folder

    def raw(self) -> Iterator[memoryview]:
        """All bytes of the file, in parts, each good until the next is taken; of a directory those
        of the file with the header.
        """
        behind = self.behind()
        for start in range(0, len(self._file), _PART):
            behind.at(start)
            yield self._file[start : start + _PART]

    @property
    def incomplete(self) -> str | None:
        """Why the file ends early, in one sentence: cut, or its recorder killed. None if it is
        whole.
        """
        told = (part.scan.incomplete for part in self._parts)
        return next((reason for reason in told if reason is not None), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file. Views handed out stay good and keep it mapped until they are gone."""
        self.closed = True
        for mapped, view in ((self._map, self._file), *(part[:2] for part in self._parts)):
            with suppress(BufferError):
                view.release()
                mapped.close()

    def behind(self, part: int = 0) -> Behind:
        """For one who reads the file, or another part (`Piece.part`), from its start on: takes what
        is behind out of memory.
        """
        mapped = self._parts[part].map if part else self._map

        def let_go(start: int, end: int) -> None:
            start -= start % mmap.PAGESIZE
            if start < len(mapped):
                mapped.madvise(mmap.MADV_DONTNEED, start, end - start)

        return Behind(let_go, self.check)

    def check(self) -> None:
        """Raise PerfDataError if the file, or one of its parts, has become shorter."""
        check_size(self._map, len(self._file), self.path)
        for part in self._parts[1:]:
            check_size(part[0], len(part[1]), self.path)

    def let_go(self) -> None:
        """Take all parts of the file out of memory; what is asked for again is read again."""
        for part in self._parts:
            part.map.madvise(mmap.MADV_DONTNEED)

    # Records

    def records(self) -> Iterator[Record]:
        """All records in the order of the file; a type without a class comes as `records.Raw`.

        What was compressed comes last, and so do the other files of a directory. Raises
        PerfDataError for a record that is too short for its type.
        """
        for records_of_part in self.records_by_part():
            yield from records_of_part

    def records_by_part(self) -> Iterator[Iterator[Record]]:
        """`records`, those of each part of the file by themselves."""
        return (part.records(self._layouts, self.path) for part in self._parts)

    def record_at(self, part: int, offset: int) -> Record:
        """The record of `records` at this offset of a part, again. Raises PerfDataError if there is
        none any more.
        """
        found = self._parts[part]
        place = Place(offset, *HEADER.unpack_from(found.view, offset))
        if not HEADER.size <= place.size <= len(found.view) - offset:
            raise PerfDataError(
                "the file changed while it was read",
                source=self.path,
                offset=offset,
                value=place.size,
            )
        return Decoder(found.view, self._layouts, self.path).record(place)

    def auxtrace_buffers(self) -> dict[Queue, list[Piece]]:
        """The AUX data: for each CPU, or each thread, its pieces in the order of the file. Nothing
        is copied. A file has so many buffers at most; `beyond` tells of more. Raises PerfDataError
        if it has too many pieces.
        """
        found = aux.buffers(self._parts, self._layouts, self.path, self.behind())
        self._beyond["buffers"] = found.beyond
        return found.found

    @property
    def beyond(self) -> int:
        """Bytes of AUX data in buffers, or in samples of some, that were too many to be kept; of
        what has been asked for.
        """
        return sum(self._beyond.values())

    @property
    def size(self) -> int:
        """Bytes, of all parts."""
        return aux.size_of(self._parts)

    @cached_property
    def samples_aux(self) -> bool:
        """Whether samples carry AUX data (`perf record --aux-sample`)."""
        return aux.in_samples(self.events)

    def aux_samples(self) -> dict[Queue, list[Piece]]:
        """The AUX data of samples, as `auxtrace_buffers` has that of buffers: each piece has what a
        buffer held last when its sample was taken. Their `aux_offset` is 0: nothing tells it.
        Nothing is copied; one piece a sample is kept.
        """
        if not self.samples_aux:
            return {}
        places = self._scan.noted[records.IdIndex.layout.number]
        ids = aux.Ids(self._decoder.as_type(records.IdIndex, place) for place in places)
        given = self.events, ids, self.time_conversion
        found = aux.samples(self._parts, self._layouts, self.path, *given)
        self._beyond["samples"] = found.beyond
        return found.found

    @cached_property
    def pebs_counters(self) -> dict[int, Event]:
        """The event that each counter has whose PEBS records are in the trace
        (AUX_OUTPUT_HW_ID); of a counter that had several the last.
        """
        found: dict[int, Event] = {}
        of_id = {number: event for event in self.events for number in event.ids}
        for place in self._scan.noted[records.AuxOutputHwId.layout.number]:
            record = self._decoder.record(place)
            who = record.sample_id
            if isinstance(record, records.AuxOutputHwId) and who is not None and who.id in of_id:
                found[record.hw_id] = of_id[who.id]
        return found

    @cached_property
    def guest_ids(self) -> dict[int, tuple[int, int]]:
        """Of events of virtual machines (`perf inject --guest-data`) by their ids: the process that
        the machine is, and its CPU. pid, tid and cpu of their records are the machine's own. Raises
        PerfDataError for more than 65,536, or more than 1,024 machines.
        """
        found: dict[int, tuple[int, int]] = {}
        machines: set[int] = set()
        for place in self._scan.noted[records.IdIndex.layout.number]:
            record = self._decoder.as_type(records.IdIndex, place)
            found |= {number: (machine, vcpu) for number, machine, vcpu in record.machines}
            machines |= {machine for _, machine, _ in record.machines}
            # without them records of guests would be taken for the host's
            if len(found) > _MOST_GUEST_IDS:
                message = f"events of virtual machines beyond {_MOST_GUEST_IDS:,}"
                raise self._error(message, place.offset, len(found))
            if len(machines) > _MOST_GUESTS:
                message = f"virtual machines beyond {_MOST_GUESTS:,}"
                raise self._error(message, place.offset, len(machines))
        return found

    @cached_property
    def guest_cpus(self) -> dict[tuple[int, int], int]:
        """Which CPU of a virtual machine a thread of the machine's process is, by (pid, tid)."""
        found: dict[tuple[int, int], int] = {}
        ids = self.guest_ids  # so that there are not too many
        for place in self._scan.noted[records.IdIndex.layout.number] if ids else ():
            record = self._decoder.as_type(records.IdIndex, place)
            threads = {number: tid for number, _, _, tid in record.entries}
            found |= {(pid, threads[number]): vcpu for number, pid, vcpu in record.machines}
        return found

    # What the file says about itself

    @property
    def intel_pt(self) -> Event | None:
        """The event that traced: the one of AUXTRACE_INFO's PMU; None without AUX data."""
        if self.info is None:
            return None
        return next((e for e in self.events if e.attr.type == self.info.pmu_type), None)

    @cached_property
    def time_conversion(self) -> TimeConversion | None:
        """TSC ticks <-> ns of the perf clock; None if the file does not say."""
        found = self.info.time_conversion if self.info else None
        for place in self._scan.noted[records.TimeConv.layout.number]:
            if found is None:
                record = self._decoder.as_type(records.TimeConv, place)
                try:
                    numbers = (record.time_shift, record.time_mult, record.time_zero)
                    found = TimeConversion(*numbers, *(record.short or ()))
                except ValueError:
                    continue
        return found

    @cached_property
    def wall_clock(self) -> WallClock | None:
        """What time of day it was (`perf record -k`); None if the file does not say. Raises
        PerfDataError for a section that is cut.
        """
        at = self._feature_cursor(Feature.CLOCK_DATA)
        return unpack_clocks(at) if at else None

    @cached_property
    def features(self) -> frozenset[int]:
        """The numbers of the features that are there; see `features.Feature`."""
        return frozenset(self._places)

    def feature(self, number: int) -> memoryview | None:
        """The bytes of a feature, from its section or its record; None if it is not there."""
        place = self._places.get(number)
        return None if place is None else self._file[place[0] : place[0] + place[1]]

    @property
    def hostname(self) -> str | None:
        """The machine's name."""
        return self._string(Feature.HOSTNAME)

    @property
    def release(self) -> str | None:
        """The kernel's release."""
        return self._string(Feature.OSRELEASE)

    @property
    def version(self) -> str | None:
        """The version of the program that wrote the file."""
        return self._string(Feature.VERSION)

    @property
    def arch(self) -> str | None:
        """The machine's architecture, such as x86_64."""
        return self._string(Feature.ARCH)

    @property
    def cpuid(self) -> str | None:
        """vendor,family,model,stepping: decoders need it for errata."""
        return self._string(Feature.CPUID)

    @property
    def cpu_description(self) -> str | None:
        """The CPU's name; in files of rtit, its facts."""
        return self._string(Feature.CPUDESC)

    @property
    def facts(self) -> dict[str, str]:
        """What rtit wrote about the recording (profile, time model, exit status ...); empty for
        other writers.
        """
        return parse_facts(self.cpu_description or "")

    @cached_property
    def command_line(self) -> list[str]:
        """The recorder's arguments; empty if the file does not say."""
        at = self._feature_cursor(Feature.CMDLINE)
        return unpack_strings(at) if at else []

    @cached_property
    def pmus(self) -> dict[int, str]:
        """attr.type -> name of the PMU."""
        at = self._feature_cursor(Feature.PMU_MAPPINGS)
        return unpack_pmus(at) if at else {}

    @property
    def build_ids(self) -> dict[str, bytes]:
        """Path -> build id of the files that the recording ran."""
        return {each.path: each.build_id for each in self._build_ids if not _of_guest(each)}

    @property
    def guest_build_ids(self) -> dict[tuple[int, str], bytes]:
        """The same of files of virtual machines: the process that the machine is, and the path."""
        found = filter(_of_guest, self._build_ids)
        return {(each.pid, each.path): each.build_id for each in found}

    @cached_property
    def _build_ids(self) -> list[BuildId]:
        places = list(self._scan.noted[records.BuildId.layout.number])
        start, size = self._places.get(Feature.BUILD_ID, (0, 0))
        end = start + size
        while end - start >= HEADER.size:
            place = Place(start, *HEADER.unpack_from(self._file, start))
            if not HEADER.size <= place.size <= end - start:
                raise self._error("bad size of a build id", start, place.size)
            places.append(place)
            start += place.size
        return [self._decoder.as_type(records.BuildId, place) for place in places]

    def bpf_code(self) -> Iterator[tuple[int, bytes]]:
        """(kernel address, code) of the functions of BPF programs, as far as the file has them.
        Raises PerfDataError where a section contradicts itself.
        """
        at = self._feature_cursor(Feature.BPF_PROG_INFO)
        return bpf_code(at) if at else iter(())

    # Inside

    def _other_parts(self) -> Iterator[Part]:
        found = [Part(self._map, self._file, self._scan)]
        if self._folder is not None:
            found += filter(None, (bare(path, self.path) for path in others(self._folder)))
            yield from found[1:]
        for part in found:
            more = inflated(part.view, part.scan, self.path)
            if more is not None:
                yield more

    def _error(self, message: str, offset: int, value: object = None) -> PerfDataError:
        return PerfDataError(message, source=self.path, offset=offset, value=value)

    def _read_feature_table(self) -> dict[int, tuple[int, int]]:
        """Feature -> (offset, size) of its section: a table behind the records has them in order of
        the bits.
        """
        found: dict[int, tuple[int, int]] = {}
        whole = len(self._file)
        for i, number in enumerate(self.header.features):
            at = self.header.data.end + i * SECTION.size
            if at + SECTION.size > whole:
                self._scan.note(f"the file has {whole:,} bytes and ends within its feature table")
                break
            offset, size = SECTION.unpack_from(self._file, at)
            if offset + size > whole:
                self._scan.note(f"feature {number} lies outside of the file at offset {offset:#x}")
                continue
            found[number] = (offset, size)
        return found

    def _read_attrs(self) -> list[tuple[Attr, tuple[int, ...]]]:
        if self.header.attrs is None:
            return list(map(self._read_attr_record, self._scan.noted[_HEADER_ATTR]))
        found = []
        budget = min(8 * _MOST_IDS, len(self._file))
        entry = self.header.entry_size
        if self.header.attrs.size // entry > _MOST_ATTRS:
            raise self._error("more attrs than any recording has", 32, self.header.attrs.size)
        for start in range(self.header.attrs.offset, self.header.attrs.end, entry):
            place = start + entry - SECTION.size
            attr = Attr.decode(self._file[start:place])
            offset, size = SECTION.unpack_from(self._file, place)
            budget -= size
            if offset + size > len(self._file) or size % 8 or budget < 0:
                raise self._error("bad place of an event's ids", place, size)
            found.append((attr, _words(self._file[offset : offset + size])))
        return found

    def _read_attr_record(self, place: Place) -> tuple[Attr, tuple[int, ...]]:
        start, end = place.offset + HEADER.size, place.offset + place.size
        size = Attr.decode(self._file[start:end]).size
        if not SMALLEST <= size <= end - start:
            raise self._error("bad size of an attr", place.offset, size)
        ids = self._file[start + size : end]
        return Attr.decode(self._file[start : start + size]), _words(ids[: len(ids) // 8 * 8])

    def _name(self, attrs: list[tuple[Attr, tuple[int, ...]]]) -> list[Event]:
        """The names are in EVENT_DESC, which has the same events in the same order, or nowhere."""
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

    def _read_info(self) -> IntelPtInfo | None:
        places = self._scan.noted[records.AuxtraceInfo.layout.number]
        if not places:
            return None
        record = self._decoder.as_type(records.AuxtraceInfo, places[0])
        if record.kind != INTEL_PT:
            raise UnsupportedError(f"{self.path}: AUX data of kind {record.kind} is no Intel PT")
        start = places[0].offset + HEADER.size + record.layout.fixed.size
        data = memoryview(record.data)
        return IntelPtInfo.decode(Cursor(data, start, self.path, "AUXTRACE_INFO"))

    def _feature_cursor(self, number: Feature) -> Cursor | None:
        data = self.feature(number)
        if data is None:
            return None
        return Cursor(data, self._places[number][0], self.path, f"HEADER_{number.name}")

    def _string(self, number: Feature) -> str | None:
        at = self._feature_cursor(number)
        return at.string() if at else None


def _words(data: memoryview) -> tuple[int, ...]:
    return tuple(value for (value,) in _U64.iter_unpack(data))


def _of_guest(record: BuildId) -> bool:
    mode = record.misc & records.Misc.CPUMODE
    return record.pid > 0 and mode in (records.Misc.GUEST_KERNEL, records.Misc.GUEST_USER)
