"""Where a trace comes from: what is known of it beside its packets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rtit.errors import PerfDataError, RtitError, UnsupportedError
from rtit.image import Image, Images, KernelFiles, Problem, guest_kernel_pid, guest_path
from rtit.image.jit import find_jit_files
from rtit.image.memory_budget import LIMITS
from rtit.perfdata import AuxBuffer, AuxChunk, PerfData, TimeConversion
from rtit.perfdata.attr import AttrFlag
from rtit.sideband import Process, ProcessExit, ThreadTable, read_sideband
from rtit.sideband.guests import TOO_MANY_SPLITS
from rtit.trace.recording.buffers import connected, placed
from rtit.trace.recording.byte_source import AuxBytes, Source, open_data
from rtit.trace.recording.settings import NO_SCALING, Cpu, Settings, of_perf, traced_ranges
from rtit.trace.stream import Stream
from rtit.trace.tables.counts import places_of
from rtit.trace.threads.address_spaces import SpaceKey, Spaces, pid_of_space
from rtit.trace.threads.schedule import Shares, shared
from rtit.trace.time.guest_time import GuestTsc, HostTime, Scaling, guest_offsets

if TYPE_CHECKING:
    from rtit.image.debug_files import Debuginfod
    from rtit.image.guest_processes import GuestProcess
    from rtit.trace.recording.packs import Pack


class Origin(Protocol):
    """What a `Trace` is made of; its properties of the same names say what they are."""

    path: str

    @property
    def closed(self) -> bool:
        """Whether it was let go of."""

    @property
    def size(self) -> int:
        """Bytes of PT, as far as they have come."""

    @property
    def buffers(self) -> int:
        """How many buffers they are in."""

    @property
    def places(self) -> int: ...
    @property
    def is_raw(self) -> bool: ...
    @property
    def guest_processes(self) -> Sequence[GuestProcess]: ...
    @property
    def data(self) -> PerfData: ...
    @property
    def command_line(self) -> list[str]: ...
    @property
    def facts(self) -> dict[str, str]: ...
    @property
    def incomplete(self) -> str | None: ...
    @property
    def is_snapshot(self) -> bool: ...
    @property
    def filter(self) -> str | None: ...
    @property
    def clock(self) -> TimeConversion | None: ...
    @property
    def images(self) -> Images: ...
    @property
    def comms(self) -> dict[int, str]: ...
    @property
    def guest_comms(self) -> dict[tuple[int, int], str]: ...
    @property
    def endings(self) -> list[ProcessExit]: ...
    @property
    def traced_instructions(self) -> dict[int, int]: ...
    @property
    def processes(self) -> list[Process]: ...

    def streams(self) -> list[Stream]:
        """The streams of PT, made anew."""

    def close(self) -> None:
        """Let go of what is open."""


class Lookup:
    """Where files are looked for by their build ids: in a folder, and, if `asked` for, by the
    servers of DEBUGINFOD_URLS. Raises UsageError if there is none.
    """

    def __init__(
        self, build_id_cache: str | os.PathLike[str] | None = None, *, asked: bool = False
    ) -> None:
        self.build_id_cache = build_id_cache
        self.debuginfod: Debuginfod | None = None
        if asked:
            from rtit.image.debug_files import Debuginfod

            self.debuginfod = Debuginfod.from_environment()


class Recording:
    """A perf.data file: what is in it is told as long as it is open, ClosedError comes after."""

    is_raw = False

    def __init__(
        self,
        data: PerfData,
        symfs: str | os.PathLike[str] | None,
        path_map: dict[str, str] | None,
        cpu: Cpu | None,
        threads: int = 0,
        pack: Pack | None = None,
        lookup: Lookup | None = None,
        guest_tsc: GuestTsc = NO_SCALING,
        kernel: KernelFiles | None = None,
        guests: Mapping[int, KernelFiles] | None = None,
        jit: Sequence[str | os.PathLike[str]] | None = None,
        guest_processes: Sequence[GuestProcess] = (),
        places: int = 0,
    ) -> None:
        self._threads = threads
        self._places = places
        self._pack = pack
        self._lookup = lookup or Lookup()
        self._guest_tsc = guest_tsc
        self._kernel, self._guests = kernel or KernelFiles(), dict(guests or {})
        if pack is not None:
            self._kernel = self._kernel.with_fallback(pack.kernel or KernelFiles())
            self._guests = self._guests or pack.guests
        self.guest_processes = guest_processes or (pack.guest_processes if pack is not None else ())
        self._jit = jit
        self._spaces: dict[SpaceKey, Image] = {}
        self._data = data
        self.path = data.path
        self._symfs = symfs
        self._path_map = path_map
        self._cpu = cpu

    @property
    def closed(self) -> bool:
        return self._data.closed

    def close(self) -> None:
        self._data.close()

    @property
    def buffers(self) -> int:
        return len(self._queues)

    @property
    def size(self) -> int:
        return sum(self._bytes(part).size for _, parts in self._parts() for part in parts)

    @cached_property
    def places(self) -> int:
        return self._places or places_of(self.size)

    @property
    def data(self) -> PerfData:
        return open_data(self._data)

    @property
    def command_line(self) -> list[str]:
        return self.data.command_line

    @property
    def facts(self) -> dict[str, str]:
        return self.data.facts

    @property
    def incomplete(self) -> str | None:
        return self.data.incomplete

    @property
    def is_snapshot(self) -> bool:
        data = self.data
        return data.info is not None and bool(data.info.snapshot_mode or data.has_aux_samples)

    @property
    def filter(self) -> str | None:
        return self.data.info.filter if self.data.info else None

    @property
    def clock(self) -> TimeConversion | None:
        return self.data.time_conversion

    @property
    def images(self) -> Images:
        return self._sideband[0]

    @property
    def comms(self) -> dict[int, str]:
        return self._sideband[1].names

    @property
    def guest_comms(self) -> dict[tuple[int, int], str]:
        guests = self._sideband[1].guests
        return guests.names if guests is not None else {}

    @property
    def endings(self) -> list[ProcessExit]:
        return self._sideband[1].exits.processes

    @property
    def traced_instructions(self) -> dict[int, int]:
        return self._sideband[1].exits.instructions

    @cached_property
    def _counters(self) -> dict[int, str]:
        found = self.data.pebs_counters
        return {number: event.name or f"counter {number}" for number, event in found.items()}

    @cached_property
    def processes(self) -> list[Process]:
        threads = self._sideband[1]
        return threads.processes.with_exits(threads.exits.processes)

    @cached_property
    def _sideband(self) -> tuple[Images, ThreadTable]:
        event = self.data.intel_pt
        kernel = None
        if event is not None and not event.attr.flags & AttrFlag.EXCLUDE_KERNEL:
            kernel = self._kernel.with_recorded_copies(self.data.folder)
        images = Images(
            size=self.data.size,
            reserved=LIMITS.aux_index(self._queues),
            symfs=self._symfs,
            path_map=self._path_map,
            build_ids=self._build_ids(),
            recorded=self.data.modified,
            packed=self._pack.files if self._pack is not None else None,
            build_id_cache=self._lookup.build_id_cache,
            debuginfod=self._lookup.debuginfod,
            kernel=kernel,
            guests=self._guest_kernels() if kernel is not None else None,
        )
        if self._pack is not None and self._jit is None:
            for problem in self._pack.jit_problems:
                images.add_jit_problem(problem)
        threads = read_sideband(self.data, images, self._jit_files())
        self._guest_spaces(images)
        buffers = len(self._queues)
        if beyond := self.data.dropped_bytes:
            message = f"{beyond:,} bytes are of buffers beyond {buffers:,}"
            images.add_problem(Problem("unreadable", "AUX data", message, beyond))
        return images, threads

    def _build_ids(self) -> dict[str, bytes]:
        of_guests = self.data.guest_build_ids.items()
        return self.data.build_ids | {guest_path(*where): found for where, found in of_guests}

    def _guest_kernels(self) -> dict[int, KernelFiles]:
        """Those that are named, and those of virtual machines of which there are records."""
        found = dict(self._guests)
        for machine in {machine for machine, _ in self.data.guest_ids.values()}:
            named = self._guests.get(machine, self._guests.get(0, KernelFiles()))
            found[machine] = named.with_recorded_copies(self.data.folder, machine)
        return found

    def _guest_spaces(self, images: Images) -> None:
        """Processes of guests, by their keys."""
        for number, each in enumerate(self.guest_processes):
            kernel = images.find_image(guest_kernel_pid(each.machine)) or images.find_image(
                guest_kernel_pid(0)
            )
            self._spaces[each.key], problems = each.image(kernel, images.files)
            images.set_image(pid_of_space(number), self._spaces[each.key])
            for problem in problems:
                images.add_problem(problem)

    def _jit_files(self) -> dict[str, str]:
        if self._jit is None and self._pack is not None:
            return self._pack.jit
        places = self._jit
        if places is None:
            beside = Path(self.path).parent
            # one that may not be listed has none for us
            listed = beside.is_dir() and os.access(beside, os.R_OK)
            places = [beside] if listed and Path(self.path).exists() else []
        return {path: path for path in find_jit_files(places)}

    def streams(self) -> list[Stream]:
        streams = []
        for queue, parts in self._parts():
            for number, part in enumerate(parts, 1):
                streams.append(self._stream(queue, part, number if len(parts) > 1 else 0))
        return streams

    def _parts(self) -> Iterator[tuple[AuxBuffer, list[list[AuxChunk]]]]:
        """Of each buffer the pieces of every stream in it."""
        for queue, pieces in self._queues.items():
            yield queue, connected(pieces) if self.is_snapshot else [pieces]

    @cached_property
    def _queues(self) -> dict[AuxBuffer, list[AuxChunk]]:
        queues = self.data.auxtrace_buffers()
        for queue, pieces in self.data.aux_samples().items():
            queues.setdefault(queue, placed(pieces))
        return queues

    def _bytes(self, pieces: list[AuxChunk]) -> AuxBytes:
        return AuxBytes(self.data, pieces, snapshot=self.is_snapshot)

    def _host_time(self, pieces: list[AuxChunk]) -> Source:
        """The bytes, with times of the host where guests are known by their VMCS."""
        source = self._bytes(pieces)
        return HostTime(source, self._guests_by_vmcs) if self._guests_by_vmcs else source

    @cached_property
    def _guests_by_vmcs(self) -> Mapping[int, Scaling]:
        given, info = self._guest_tsc, self.data.info
        if given != "auto":
            return {} if isinstance(given, tuple) else given
        found: dict[int, Scaling] = {}
        if info is not None:
            ratio = info.tsc_ctc_n, info.tsc_ctc_d
            for _, parts in self._parts():
                for part in parts:
                    for vmcs, offset in guest_offsets(self._bytes(part), ratio).items():
                        found.setdefault(vmcs, (offset, NO_SCALING[1]))
        return found

    def _stream(self, queue: AuxBuffer, pieces: list[AuxChunk], part: int) -> Stream:
        images, threads = self._sideband
        ranges: tuple[tuple[int, int], ...] = ()
        if queue.cpu < 0:
            pid, tid = images.pid(queue.tid), queue.tid
            ranges = traced_ranges(self.filter, images.mappings(tid))
        else:
            pid, tid = threads.turns.first_on(queue.cpu)
        settings: Settings | RtitError
        shares: Shares | None = None
        try:
            start = pieces[0].reference
            settings = of_perf(self.data, start, self._cpu, ranges, self._threads, self.places)
            if isinstance(self._guest_tsc, tuple):
                settings = replace(settings, guest_tsc=self._guest_tsc)
            if queue.cpu >= 0:
                turns = threads.turns.on(queue.cpu)
                if threads.guests is not None:
                    turns = threads.guests.split(turns)
                    if threads.guests.has_too_many_splits:
                        images.add_problem(TOO_MANY_SPLITS)
                shares = shared(turns, images, self.data)
        except (PerfDataError, UnsupportedError) as error:
            settings = error
        begin = pieces[0].aux_offset
        missing = [
            (loss.offset - begin, str(loss))
            for loss in threads.losses.for_buffer(queue)
            if loss.offset >= begin
        ]
        runs: Iterable[int] = [pid]
        if shares is not None:
            runs = (pid for pid, _, guest in shares.turns.who() if guest is None)
        machine = images.guest_on_cpu(runs)
        return Stream(
            self._host_time(pieces),
            images.image(tid),
            settings,
            cpu=queue.cpu,
            tid=tid,
            pid=pid,
            name=threads.names.get(tid),
            part=part,
            shares=shares,
            missing=missing,
            clock=self.clock,
            images=images,
            kernel=images.kernel_image,
            guest=images.find_image(guest_kernel_pid(machine)) if machine is not None else None,
            machine=machine or 0,
            spaces=self._spaces or None,
            counters=self._counters,
        )


class RawPt:
    """Raw PT: packets and an image, without a perf.data around them."""

    is_raw = True
    command_line: list[str] = []  # noqa: RUF012 - nobody changes them
    facts: dict[str, str] = {}  # noqa: RUF012
    guest_processes: Sequence[GuestProcess] = ()
    incomplete: str | None = None
    is_snapshot = False
    filter: str | None = None
    clock: TimeConversion | None = None
    comms: dict[int, str] = {}  # noqa: RUF012
    guest_comms: dict[tuple[int, int], str] = {}  # noqa: RUF012
    endings: list[ProcessExit] = []  # noqa: RUF012
    traced_instructions: dict[int, int] = {}  # noqa: RUF012
    processes: list[Process] = []  # noqa: RUF012
    closed = False
    buffers = 1

    def __init__(
        self,
        source: Source,
        image: Image,
        settings: Settings,
        path: str,
        spaces: Spaces | None = None,
    ) -> None:
        self.path = path
        self._spaces = spaces
        self._source = source
        self._settings = settings
        self.images = Images()
        self.images.set_image(_NOBODY, image)
        for number, each in enumerate((spaces or {}).values()):
            self.images.set_image(pid_of_space(number), each)

    @property
    def size(self) -> int:
        return self._source.size

    @cached_property
    def places(self) -> int:
        (stream,) = self.streams()
        return stream.places

    @property
    def data(self) -> PerfData:
        raise UnsupportedError(f"{self.path} is raw PT: there is no perf.data around it")

    def streams(self) -> list[Stream]:
        image = self.images.image(_NOBODY)
        return [
            Stream(self._source, image, self._settings, images=self.images, spaces=self._spaces)
        ]

    def close(self) -> None:
        """Nothing is open."""


_NOBODY = -1
"""The process of a stream of which it is not known."""
