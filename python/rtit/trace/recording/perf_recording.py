"""The code, threads and streams of a perf.data file.

`PerfRecording` combines three sources for each stream: the AUX data (the packets), the sideband
records (threads, mappings, losses; `rtit.sideband`), and the files with the code (`rtit.image`).
Nothing is read before it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.errors import PerfDataError, RtitError, UnsupportedError
from rtit.image import Image, Images, KernelFiles, Problem, guest_kernel_pid, guest_path
from rtit.image.jit_files import find_jit_files
from rtit.image.kernel.kernel_files import kallsyms_path
from rtit.image.mapped_files import PAGE, PackedFiles
from rtit.image.memory_budget import LIMITS
from rtit.image.perf_maps import (
    FACT,
    PerfMapStamp,
    find_map_of_time,
    find_stamped_map,
    parse_stamps,
)
from rtit.perfdata import AuxBuffer, AuxChunk, PerfData
from rtit.perfdata.attr import AttrFlag
from rtit.perfdata.system_processes import cr3_of_process
from rtit.sideband import ThreadTable, read_sideband
from rtit.sideband.guests import TOO_MANY_SPLITS
from rtit.trace.recording.aux_buffers import align_snapshots, group_contiguous
from rtit.trace.recording.byte_source import AuxDataSource, ByteSource, open_data
from rtit.trace.recording.decoder_settings import (
    NO_SCALING,
    Cpu,
    Settings,
    settings_from_perf,
    traced_ranges,
)
from rtit.trace.stream import Stream
from rtit.trace.threads.address_spaces import SpaceKey, space_pid
from rtit.trace.time.guest_time import GuestTsc, HostTimeSource, Scaling, guest_offsets

if TYPE_CHECKING:
    from rtit.image import Symbols
    from rtit.image.debuginfod import Debuginfod
    from rtit.image.guest_processes import GuestProcess
    from rtit.trace.recording.packs import OpenPack
    from rtit.trace.recording.remote_side_files import RemoteSideFiles
    from rtit.trace.threads.schedule import ThreadScope


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """The options of `Trace`, which documents them."""

    symfs: str | os.PathLike[str] | None = None
    path_map: dict[str, str] | None = None
    cpu: Cpu | None = None
    jobs: int = 0
    build_id_cache: str | os.PathLike[str] | None = None
    debuginfod: Debuginfod | None = None
    guest_tsc: GuestTsc = NO_SCALING
    kernel: KernelFiles = field(default_factory=KernelFiles)
    guests: Mapping[int, KernelFiles] = field(default_factory=dict)
    """Kernel files of virtual machines, by process id; 0: of all others."""
    guest_processes: Sequence[GuestProcess] = ()
    jit: Sequence[str | os.PathLike[str]] | None = None


class PerfRecording:
    """The images, sideband records and streams of an open perf.data file.

    Everything that needs the file raises ClosedError after it was closed.
    """

    def __init__(self, file: PerfData, options: RecordingOptions, pack: OpenPack | None) -> None:
        if pack is not None:
            options = replace(
                options,
                kernel=options.kernel.with_fallback(pack.kernel or KernelFiles()),
                guests=options.guests or pack.guests,
                guest_processes=options.guest_processes or pack.guest_processes,
            )
        self._file = file
        self.options = options
        self._pack = pack
        self._spaces: dict[SpaceKey, Image] = {}

    @property
    def data(self) -> PerfData:
        """The file. Raises ClosedError if it was closed."""
        return open_data(self._file)

    @property
    def is_snapshot(self) -> bool:
        """Whether each buffer has only its last packets."""
        data = self.data
        return data.info is not None and bool(data.info.snapshot_mode or data.has_aux_samples)

    @property
    def filter(self) -> str | None:
        """The address filter, as the kernel spells it."""
        return self.data.info.filter if self.data.info else None

    @property
    def size(self) -> int:
        """Bytes of PT."""
        return sum(
            self._aux_source(part).size for _, parts in self._chunks_by_stream() for part in parts
        )

    # Packets

    @cached_property
    def buffers(self) -> dict[AuxBuffer, list[AuxChunk]]:
        """The chunks of each AUX buffer, in stream order."""
        buffers = self.data.auxtrace_buffers()
        for queue, chunks in self.data.aux_samples().items():
            buffers.setdefault(queue, align_snapshots(chunks))
        return buffers

    def _chunks_by_stream(self) -> Iterator[tuple[AuxBuffer, list[list[AuxChunk]]]]:
        """Yield the chunks of each buffer, grouped by stream."""
        for queue, chunks in self.buffers.items():
            yield queue, group_contiguous(chunks) if self.is_snapshot else [chunks]

    def _aux_source(self, chunks: list[AuxChunk]) -> AuxDataSource:
        return AuxDataSource(self.data, chunks, is_snapshot=self.is_snapshot)

    @cached_property
    def _guest_scalings(self) -> Mapping[int, Scaling]:
        """Offset and multiplier of the TSC of each guest, by VMCS pointer."""
        given, info = self.options.guest_tsc, self.data.info
        if given != "auto":
            return {} if isinstance(given, tuple) else given
        found: dict[int, Scaling] = {}
        if info is not None:
            ratio = info.tsc_ctc_n, info.tsc_ctc_d
            for _, parts in self._chunks_by_stream():
                for part in parts:
                    for vmcs, offset in guest_offsets(self._aux_source(part), ratio).items():
                        found.setdefault(vmcs, (offset, NO_SCALING[1]))
        return found

    # Code and threads

    @property
    def images(self) -> Images:
        """The code of all processes over time."""
        return self._images_and_threads[0]

    @property
    def threads(self) -> ThreadTable:
        """Threads, processes, scheduling intervals and losses."""
        return self._images_and_threads[1]

    @cached_property
    def _images_and_threads(self) -> tuple[Images, ThreadTable]:
        event, options, pack = self.data.intel_pt, self.options, self._pack
        kernel = None
        is_system = "system" in self.data.facts
        packed: PackedFiles | None = pack.files if pack is not None else None
        if is_system and packed is None:
            packed = self._find_program_files()
        if event is not None and not event.attr.flags & AttrFlag.EXCLUDE_KERNEL:
            kernel = options.kernel.with_recorded_copies(self.data.folder)
            if is_system and (kallsyms := self._find_kallsyms()) is not None:
                kernel = kernel.with_fallback(
                    KernelFiles(kallsyms=kallsyms, owner=self._remote_side_files)
                )
        images = Images(
            size=self.data.size,
            reserved=LIMITS.aux_index_size(self.buffers),
            symfs=options.symfs,
            path_map=options.path_map,
            build_ids=self._build_ids(),
            recorded=self.data.modified,
            packed=packed,
            build_id_cache=options.build_id_cache,
            debuginfod=options.debuginfod,
            kernel=kernel,
            guests=self._guest_kernels() if kernel is not None else None,
            has_all_code=is_system,
        )
        if pack is not None and options.jit is None:
            for problem in pack.jit_problems:
                images.add_jit_problem(problem)
        threads = read_sideband(self.data, images, self._jit_files(), self._find_perf_map)
        self._add_guest_processes(images)
        self._add_page_table_spaces(images)
        if beyond := self.data.dropped_bytes:
            message = f"{beyond:,} bytes are of buffers beyond {len(self.buffers):,}"
            images.add_problem(Problem("unreadable", "AUX data", message, beyond))
        return images, threads

    @cached_property
    def _remote_side_files(self) -> RemoteSideFiles | None:
        """Copies of the files beside the recording; None if it is local."""
        if self.data.remote is None:
            return None
        from rtit.trace.recording.remote_side_files import RemoteSideFiles

        return RemoteSideFiles(self.data.remote)

    def _find_kallsyms(self) -> str | None:
        if self._remote_side_files is not None:
            return self._remote_side_files.copy_kallsyms()
        path = kallsyms_path(os.fspath(self.data.path))
        return path if Path(path).is_file() else None

    def _find_program_files(self) -> PackedFiles:
        """Return the program files of a recorded system."""
        from rtit.image.program_files import ProgramFiles, program_files_path

        path: str | None = program_files_path(os.fspath(self.data.path))
        if self._remote_side_files is not None:
            path = self._remote_side_files.copy_program_files()
        if path is None or not Path(path).is_file():
            return {}
        return ProgramFiles(path).files

    def _build_ids(self) -> dict[str, bytes]:
        guest_build_ids = {
            guest_path(*guest_file): build_id
            for guest_file, build_id in self.data.guest_build_ids.items()
        }
        return self.data.build_ids | guest_build_ids

    def _guest_kernels(self) -> dict[int, KernelFiles]:
        """Return the kernel files of the named virtual machines, and of those with records."""
        kernels = dict(self.options.guests)
        for machine in {machine for machine, _ in self.data.guest_ids.values()}:
            named = kernels.get(machine, self.options.guests.get(0, KernelFiles()))
            kernels[machine] = named.with_recorded_copies(self.data.folder, machine)
        return kernels

    def _add_guest_processes(self, images: Images) -> None:
        for index, process in enumerate(self.options.guest_processes):
            kernel = images.find_image(guest_kernel_pid(process.machine)) or images.find_image(
                guest_kernel_pid(0)
            )
            image, problems = process.image(kernel, images.files)
            self._spaces[process.key] = image
            images.set_image(space_pid(index), image)
            for problem in problems:
                images.add_problem(problem)

    def _add_page_table_spaces(self, images: Images) -> None:
        """Add the address spaces of a recorded system, which CR3 selects."""
        for pid in images.pids:
            cr3 = cr3_of_process(pid)
            if cr3 is None:
                continue
            image = images.image(pid)
            # With page table isolation, a process has two page tables, one after the other. It runs
            # with the second one, and maps files with the first one.
            if not [*image.mappings] and cr3 & PAGE and images.find_image(pid - 1) is not None:
                image.mappings = images.image(pid - 1).mappings
            images.set_image(space_pid(len(self._spaces)), image)
            self._spaces[cr3] = image

    def _jit_files(self) -> dict[str, str]:
        folders = self.options.jit
        if folders is None and self._pack is not None:
            return self._pack.jit
        if folders is None and self._remote_side_files is not None:
            return self._remote_side_files.copy_jit_files()
        if folders is None:
            path = Path(self.data.path)
            can_list = path.parent.is_dir() and os.access(path.parent, os.R_OK)
            folders = [path.parent] if can_list and path.exists() else []
        return {path: path for path in find_jit_files(folders)}

    @cached_property
    def _stamped_maps(self) -> dict[int, PerfMapStamp]:
        return parse_stamps(self.data.facts.get(FACT, ""))

    def _find_perf_map(self, pid: int) -> str | None:
        """Return the path of the perf map in /tmp that belongs to a process of this recording."""
        if self.options.jit is not None or self._pack is not None:
            return None
        if not self.data.facts:
            return find_map_of_time(pid, self.data.modified)
        stamp = self._stamped_maps.get(pid)
        return find_stamped_map(pid, stamp) if stamp is not None else None

    @cached_property
    def _pebs_counters(self) -> dict[int, str]:
        counters = self.data.pebs_counters.items()
        return {number: event.name or f"counter {number}" for number, event in counters}

    @cached_property
    def symbols(self) -> Symbols:
        """The names of addresses."""
        from rtit.image import Symbols

        return Symbols(self.images)

    # Streams

    def streams(self, max_counters: int) -> list[Stream]:
        """Return a new `Stream` for each buffer, or for each contiguous part of its snapshots."""
        return [
            self._build_stream(queue, part, number if len(parts) > 1 else 0, max_counters)
            for queue, parts in self._chunks_by_stream()
            for number, part in enumerate(parts, 1)
        ]

    def _build_stream(
        self, queue: AuxBuffer, chunks: list[AuxChunk], part: int, max_counters: int
    ) -> Stream:
        images, threads = self._images_and_threads
        ranges: tuple[tuple[int, int], ...] = ()
        if queue.cpu < 0:
            pid, tid = images.pid(queue.tid), queue.tid
            ranges = traced_ranges(self.filter, images.mappings(tid))
        else:
            pid, tid = threads.intervals.first_thread(queue.cpu)
        settings: Settings | RtitError
        scope: ThreadScope | None = None
        try:
            settings = settings_from_perf(
                self.data,
                chunks[0].reference,
                self.options.cpu,
                ranges,
                self.options.jobs,
                max_counters,
            )
            if isinstance(self.options.guest_tsc, tuple):
                settings = replace(settings, guest_tsc=self.options.guest_tsc)
            if queue.cpu >= 0:
                scope = self._thread_scope(queue.cpu)
        except (PerfDataError, UnsupportedError) as error:
            settings = error
        executed_pids: Iterable[int] = [pid]
        if scope is not None:
            intervals = scope.schedule.intervals
            executed_pids = (pid for pid, _, guest in intervals.iterate_threads() if guest is None)
        machine = images.guest_on_cpu(executed_pids)
        source: ByteSource = self._aux_source(chunks)
        if self._guest_scalings:
            source = HostTimeSource(source, self._guest_scalings)
        return Stream(
            source,
            images.image(tid),
            settings,
            cpu=queue.cpu,
            tid=tid,
            pid=pid,
            name=threads.names.get(tid),
            part=part,
            thread_scope=scope,
            recording_losses=self._losses_of_buffer(queue, chunks[0].aux_offset),
            clock=self.data.time_conversion,
            images=images,
            symbols=self.symbols,
            kernel_image=images.kernel_image,
            guest_image=images.find_image(guest_kernel_pid(machine))
            if machine is not None
            else None,
            guest_machine=machine or 0,
            spaces=self._spaces or None,
            pebs_counters=self._pebs_counters,
        )

    def _thread_scope(self, cpu: int) -> ThreadScope | None:
        """None if only one thread can have run on the CPU."""
        # Imports NumPy, which a recording without buffers of CPUs does not need.
        from rtit.trace.threads.schedule import ThreadScope, schedule_of_cpu

        images, threads = self._images_and_threads
        intervals = threads.intervals.intervals_of(cpu)
        if threads.guests is not None:
            intervals = threads.guests.split_at_guest_switches(intervals)
            if threads.guests.has_too_many_splits:
                images.add_problem(TOO_MANY_SPLITS)
        schedule = schedule_of_cpu(intervals, images, self.data)
        return ThreadScope(schedule) if schedule is not None else None

    def _losses_of_buffer(self, queue: AuxBuffer, start: int) -> list[tuple[int, str]]:
        """Return stream offset and reason of each loss in a buffer, from `start` on."""
        return [
            (loss.offset - start, str(loss))
            for loss in self.threads.losses.for_buffer(queue)
            if loss.offset >= start
        ]
