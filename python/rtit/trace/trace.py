"""An open trace: its streams and tables, and what the recording says about itself.

`Trace` opens a perf.data file. `rtit.decode` returns a `RawTrace` (`rtit.trace.raw_pt`), which has
the same interface for packets without a file; a property that only a file can have is empty there.

Tables of a trace are the tables of its streams, one after the other, with the columns `tid` and
`cpu`. A stream of a CPU is first divided by thread where that is not too much work: see `by_thread`
and `select`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, Self

from rtit.errors import RtitError, UsageError
from rtit.image import Images, KernelFiles, Mapping, Problem
from rtit.image.kernel.kernel_files import find_guest_kernels
from rtit.image.mappings import guest_path
from rtit.perfdata import PerfData, TimeConversion
from rtit.remote_files import open_if_url
from rtit.sideband import Process, ProcessExit
from rtit.trace.notebook_display import NotebookDisplay
from rtit.trace.recording.decoder_settings import NO_SCALING, Cpu, Settings, check_settings
from rtit.trace.recording.open_pack import open_pack
from rtit.trace.recording.perf_recording import PerfRecording, RecordingOptions
from rtit.trace.stream import Stream
from rtit.trace.tables import build_tables
from rtit.trace.tables.batch import B, Table
from rtit.trace.tables.counts import default_max_counters
from rtit.trace.tables.coverage_ledger import Ledger
from rtit.trace.tables.packets import Packets
from rtit.trace.tables.rows import Branches, Events, Instructions, Rows, SyncPoints
from rtit.trace.tables.selection import SelectedRanges, Selection
from rtit.trace.threads.thread_splitter import ThreadSplitter
from rtit.trace.time.guest_time import GuestTsc, check_guest_tsc

if TYPE_CHECKING:
    from rtit.image import Symbols
    from rtit.image.guest_processes import GuestProcess
    from rtit.trace.tables.call_tree import CallTree
    from rtit.trace.tables.calls import Calls

__all__ = ["Process", "ProcessExit", "Trace"]


class Trace(NotebookDisplay):
    """A perf.data file, opened for reading. A context manager.

    Parameters:

    * `path`: a path; a URL such as https://, which is read by range and needs the extra
      `rtit[remote]`; a file open for reading in binary; or a pipe, which is copied to an unnamed
      file. The files in a pack (`rtit pack`) stand for the recorded ones.
    * `symfs`: a folder with the recorded files under their recorded paths. `path_map`: other paths
      of single files or folders.
    * `build_id_cache`: a folder like perf's ~/.debug, where files that are missing or have changed
      are searched by build id. `debuginfod`: also ask the servers of DEBUGINFOD_URLS.
    * `jit`: files jit-PID.dump and perf-PID.map, or folders with them; None: those beside the
      recording, and the maps in /tmp that the recorded processes wrote.
    * `cpu`: DisplayFamily, DisplayModel and stepping of the processor, in place of the file's.
    * `jobs`, `max_counters`: as for `rtit.decode`.
    * `kernel`: code of the kernel; without it the copies of `perf record --kcore`.
    * `guest`: code of the kernel of virtual machines. `guest_mount`: a folder with the root file
      systems of virtual machines, each under its process id. `guest_processes`: processes in them,
      CR3[,VMCS]=MACHINE/PID each.
    * `guest_tsc`: offset and multiplier (units of 2**-48) of the TSC of a virtual machine that was
      traced with its host; for several machines by VMCS pointer; "auto" computes offsets from TMA
      packets. Times are then the host's.

    Raises PerfDataError, UnsupportedError and UsageError. After `close`, everything that needs the
    file raises ClosedError, in the streams as well.
    """

    is_raw = False
    """Whether the trace is packets and code without a perf.data file."""

    def __init__(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        symfs: str | os.PathLike[str] | None = None,
        path_map: dict[str, str] | None = None,
        cpu: Cpu | None = None,
        jobs: int = 0,
        max_counters: int = 0,
        build_id_cache: str | os.PathLike[str] | None = None,
        debuginfod: bool = False,
        guest_tsc: GuestTsc = NO_SCALING,
        kernel: KernelFiles | None = None,
        guest: KernelFiles | None = None,
        guest_mount: str | os.PathLike[str] | None = None,
        guest_processes: Sequence[str] = (),
        jit: Sequence[str | os.PathLike[str]] | None = None,
    ) -> None:
        guests = find_guest_kernels(guest_mount)
        processes: Sequence[GuestProcess] = ()
        if guest_processes:
            from rtit.image.guest_processes import read_processes

            processes = read_processes(guest_processes, guest_mount)
        if guest_mount is not None:
            # Files below the mount keep their paths, whatever `path_map` does to others.
            mount = os.path.realpath(guest_mount)
            roots = {guest_path(each, ""): f"{mount}/{each}" for each in guests}
            path_map = {mount: mount, **roots, **(path_map or {})}
        if guest is not None:
            guests[0] = guest
        check_settings(Settings(jobs=jobs, max_counters=max_counters))
        check_guest_tsc(guest_tsc)
        servers = None
        if debuginfod:
            from rtit.image.debuginfod import Debuginfod

            servers = Debuginfod.from_environment()
        path = open_if_url(path)
        pack = open_pack(path)
        self._file = PerfData(path) if pack is None else PerfData(pack.recording, name=pack.name)
        options = RecordingOptions(
            symfs=symfs,
            path_map=path_map,
            cpu=cpu,
            jobs=jobs,
            build_id_cache=build_id_cache,
            debuginfod=servers,
            guest_tsc=guest_tsc,
            kernel=kernel or KernelFiles(),
            guests=guests,
            guest_processes=processes,
            jit=jit,
        )
        self._recording = PerfRecording(self._file, options, pack)
        self._max_counters = max_counters

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        from textwrap import shorten

        if self._is_closed:
            return f"<Trace {self.path!r}, closed>"
        try:
            size, count = self._size, self._buffer_count
            command = " ".join(self.command_line)
        except RtitError as error:
            return f"<Trace {self.path!r}: {error}>"
        description = f": {shorten(command, 60, placeholder=' ...')}" if command else ""
        buffers = f"{count} buffer" + "s" * (count != 1)
        return f"<Trace {self.path!r}{description}; {buffers}, {size:,} bytes of PT>"

    def close(self) -> None:
        """Close the file. Values that were computed before remain available."""
        self._file.close()

    @property
    def _is_closed(self) -> bool:
        return self._file.closed

    @property
    def _size(self) -> int:
        """Bytes of PT; of a pipe those that were read so far."""
        return self._recording.size

    @property
    def _buffer_count(self) -> int:
        return len(self._recording.buffers)

    # The recording

    @property
    def path(self) -> str:
        """The path of the file, or the title of raw PT."""
        return self._file.path

    @property
    def data(self) -> PerfData:
        """The perf.data file. Raises UnsupportedError for raw PT."""
        return self._recording.data

    @property
    def command_line(self) -> list[str]:
        """The recorder's arguments; empty if unknown."""
        return self.data.command_line

    @property
    def facts(self) -> dict[str, str]:
        """The facts that rtit wrote about a recording of its own; empty for others."""
        return self.data.facts

    @property
    def incomplete(self) -> str | None:
        """One sentence that says why the file ends early; None if it is complete."""
        return self.data.incomplete

    @property
    def is_snapshot(self) -> bool:
        """Whether each buffer has only its last packets."""
        return self._recording.is_snapshot

    @property
    def filter(self) -> str | None:
        """The address filter of the recording, as the kernel spells it."""
        return self._recording.filter

    @property
    def clock(self) -> TimeConversion | None:
        """Converts between TSC ticks and nanoseconds of the perf clock; None if unknown."""
        return self.data.time_conversion

    @cached_property
    def max_counters(self) -> int:
        """The number of distinct runs, and of distinct edges, that are counted separately."""
        return self._max_counters or default_max_counters(self._size)

    # Threads and processes

    @property
    def comms(self) -> dict[int, str]:
        """The name of each thread that has one, by tid."""
        return self._recording.threads.names

    @property
    def guest_comms(self) -> dict[tuple[int, int], str]:
        """The names of threads of virtual machines, by (process of the machine, tid in it)."""
        guests = self._recording.threads.guests
        return guests.names if guests is not None else {}

    @property
    def guest_processes(self) -> Sequence[GuestProcess]:
        """The processes of virtual machines with known code."""
        return self._recording.options.guest_processes

    @property
    def endings(self) -> list[ProcessExit]:
        """The end of each process, if the file says so: recordings of rtit do."""
        return self._recording.threads.exits.exits_in_order

    @property
    def traced_instructions(self) -> dict[int, int]:
        """The number of traced instructions by tid, as the recorder counted them: of the threads
        that ended, in recordings of rtit.
        """
        return self._recording.threads.exits.instructions

    @cached_property
    def processes(self) -> list[Process]:
        """All processes, with their parents and how they ended. Parents come before children."""
        threads = self._recording.threads
        return threads.processes.with_exits(threads.exits.exits_in_order)

    # Code

    @property
    def images(self) -> Images:
        """The code of every process over time."""
        return self._recording.images

    @property
    def symbols(self) -> Symbols:
        """The names of addresses."""
        return self._recording.symbols

    @property
    def image_problems(self) -> list[Problem]:
        """Files without usable code (missing, changed, truncated), and other missing data."""
        return self.images.problems

    def mappings(self) -> dict[int, list[Mapping]]:
        """Return the executable mappings of each process, over its whole life."""
        return {pid: list(self.images.mappings(pid)) for pid in self.images.pids}

    # Streams

    @cached_property
    def streams(self) -> list[Stream]:
        """The PT streams in the order of the file; raw PT has one."""
        return self._recording.streams(self.max_counters)

    @cached_property
    def threads(self) -> list[Stream]:
        """The streams, with each stream of a CPU split by thread; a thread that ran on several CPUs
        has several streams.

        Each of them reads all packets of its CPU, and decodes them if the kernel was traced.
        `by_thread` limits this work.
        """
        return [
            each
            for stream in self.streams
            for each in self._thread_splitter.split_by_thread(stream)
        ]

    @cached_property
    def _thread_splitter(self) -> ThreadSplitter:
        return ThreadSplitter(self.comms)

    def by_thread(
        self, where: Selection | None = None, *, always_split: bool = False
    ) -> list[Stream]:
        """As `threads`, those that `where` selects, within a work limit.

        A CPU with more than 16 selected threads stays one stream, whose rows have thread columns,
        if splitting would read more than 64 MB, for all CPUs together; and so does a CPU with
        kernel code. `always_split` ignores these limits. Raises UsageError if `where` names streams
        and none matches, UnsupportedError if splitting would read 256 times the size of the trace.
        """
        # With the kernel, each thread would need a decoding of the whole CPU.
        streams = self._thread_splitter.select_threads(
            self.streams,
            where,
            joins_threads=lambda stream: stream.has_kernel_code,
            always_split=always_split,
        )
        return _select_matching_streams(where, streams)

    def select(self, where: Selection | None = None, *, always_split: bool = False) -> list[Stream]:
        """The streams for tables of executed code: as `by_thread`, but a CPU with kernel code stays
        one stream unless `where` names threads, processes or thread names.
        """
        names_threads = where is not None and bool(where.tids or where.pids or where.comms)

        def keeps_whole(stream: Stream) -> bool:
            return not names_threads and stream.has_kernel_code

        streams = self._thread_splitter.select_threads(
            self.streams, where, keeps_whole, always_split=always_split
        )
        return _select_matching_streams(where, streams)

    def call_streams(self, where: Selection | None = None) -> list[Stream]:
        """Return the streams that show the calls of the selected threads: a stream for each thread,
        or whole CPUs if their kernel was traced. `threads_of_calls` selects the threads of a CPU.

        Raises UsageError if `where` names threads and no stream has any of them.
        """
        streams = self._thread_splitter.select_threads(
            self.streams, where, lambda stream: stream.has_kernel_tasks, always_split=True
        )
        if where is None:
            return streams
        where.select_streams(
            [each for stream in streams for each in self._streams_of_tasks(stream)]
        )
        return [each for each in streams if self.threads_of_calls([each], where)]

    def threads_of_calls(
        self, streams: Sequence[Stream], where: Selection | None = None
    ) -> dict[int, Stream]:
        """Return the selected threads in streams of `call_streams` by their ids, each as a stream.

        A thread of several CPUs has the stream of one of them.
        """
        found: dict[int, Stream] = {}
        for stream in streams:
            for each in self._streams_of_tasks(stream):
                if where is None or where.matches(each):
                    found.setdefault(each.tid, each)
        return found

    def _streams_of_tasks(self, stream: Stream) -> list[Stream]:
        from rtit.trace.process_calls import threads_of_calls

        if not stream.has_kernel_tasks:
            return [stream]
        threads = threads_of_calls([stream])
        return [self._thread_splitter.stream_of_thread(stream, *each) for each in threads]

    def call_tree(self, where: Selection | None = None, *, inlines: bool = False) -> CallTree:
        """Return who called whom: the call trees of the selected threads, side by side.

        `where` selects threads; instructions of a thread are not selected. `inlines`: inlined
        functions have nodes, too, if the files have DWARF; this takes longer. Raises UsageError if
        `where` selects by time or address, UnsupportedError for CPUs whose kernel was traced if the
        recording does not show where it switches threads.
        """
        from rtit.trace.process_calls import call_tree_of_process, streams_by_process
        from rtit.trace.tables.call_tree import join_call_trees

        if where is not None and where != Selection(
            where.tids, where.pids, where.cpus, where.comms
        ):
            raise UsageError("a call tree has whole threads: select by thread, process or name")

        def tree_of_process(streams: Sequence[Stream]) -> CallTree:
            is_whole = not self.is_snapshot
            tree = call_tree_of_process(streams, self.symbols, is_whole=is_whole, inlines=inlines)
            if where is None or not streams[0].has_kernel_tasks:
                return tree
            return tree.select_threads(self.threads_of_calls(streams, where))

        return join_call_trees(map(tree_of_process, streams_by_process(self.call_streams(where))))

    def calls(self, where: Selection | None = None) -> Table[Calls]:
        """Every call of the selected threads, with the columns `tid` and `cpu`.

        A stack may continue in another thread of its process, if that is selected, too. `where`
        selects threads, and calls by the time at which they began and by the called function.
        Raises UnsupportedError as `call_tree`.
        """
        from rtit.trace.process_calls import streams_by_process, table_of_calls
        from rtit.trace.tables.calls import Calls

        processes = streams_by_process(self.call_streams(where))
        self._check_functions_exist(where, [streams[0] for streams in processes])
        parts = [
            table_of_calls(
                streams,
                self.symbols,
                where,
                is_whole=not self.is_snapshot,
                tids=self.threads_of_calls(streams, where),
            )
            for streams in processes
        ]
        return build_tables.concatenate_tables([(each, -1, -1) for each in parts], Calls)

    # Tables of all streams. They raise UsageError if `where` names streams or functions that the
    # trace does not have.

    def blocks(
        self,
        where: Selection | None = None,
        *,
        timing: bool = False,
        extra_columns: Collection[str] = (),
    ) -> Table[Rows]:
        """`Stream.blocks` of all selected streams, with the columns `tid` and `cpu`.

        `extra_columns`: of `index`, `function`, `file` and `line`. `index` divides each stream of a
        CPU by thread, as `calls` does.
        """

        def table_of(stream: Stream) -> Table[Rows]:
            return stream.blocks(where, timing=timing, extra_columns=extra_columns)

        return self._table_of_streams(
            Rows, table_of, where, self._streams_for_columns(where, extra_columns)
        )

    def instructions(
        self,
        where: Selection | None = None,
        *,
        timing: bool = False,
        extra_columns: Collection[str] = (),
    ) -> Table[Instructions]:
        """`Stream.instructions` of all selected streams; `extra_columns` as for `blocks`."""

        def table_of(stream: Stream) -> Table[Instructions]:
            return stream.instructions(where, timing=timing, extra_columns=extra_columns)

        return self._table_of_streams(
            Instructions, table_of, where, self._streams_for_columns(where, extra_columns)
        )

    def branches(
        self,
        where: Selection | None = None,
        *,
        timing: bool = False,
        extra_columns: Collection[str] = (),
    ) -> Table[Branches]:
        """`Stream.branches` of all selected streams; `extra_columns` as for `blocks`."""

        def table_of(stream: Stream) -> Table[Branches]:
            return stream.branches(where, timing=timing, extra_columns=extra_columns)

        return self._table_of_streams(
            Branches, table_of, where, self._streams_for_columns(where, extra_columns)
        )

    def _streams_for_columns(
        self, where: Selection | None, extra_columns: Collection[str]
    ) -> list[Stream] | None:
        """The streams of single threads if rows have an index; None: those of `select`."""
        return self.by_thread(where, always_split=True) if "index" in extra_columns else None

    def raw_events(self, where: Selection | None = None, *, timing: bool = False) -> Table[Events]:
        """`Stream.raw_events` of all selected streams."""
        return self._table_of_streams(
            Events, lambda stream: stream.raw_events(where, timing=timing), where
        )

    def sync_points(
        self, where: Selection | None = None, *, timing: bool = False
    ) -> Table[SyncPoints]:
        """`Stream.sync_points` of all selected streams."""
        return self._table_of_streams(
            SyncPoints, lambda stream: stream.sync_points(where, timing=timing), where
        )

    def packets(self, where: Selection | None = None, *, timing: bool = False) -> Table[Packets]:
        """`Stream.packets` of all selected streams."""
        return self._table_of_streams(
            Packets, lambda stream: stream.packets(where, timing=timing), where, self.streams
        )

    def ledger(self, where: Selection | None = None) -> Ledger:
        """`Stream.ledger` of all selected streams."""
        streams = _select_matching_streams(where, self.streams)
        return build_tables.concatenate_ledgers(
            [(each.ledger(), each.tid, each.cpu) for each in streams]
        )

    def _table_of_streams(
        self,
        batch_type: type[B],
        table_of: Callable[[Stream], Table[B]],
        where: Selection | None,
        candidates: list[Stream] | None = None,
    ) -> Table[B]:
        streams = (
            self.select(where)
            if candidates is None
            else _select_matching_streams(where, candidates)
        )
        self._check_functions_exist(where, streams)
        parts = [(table_of(each), each.tid, each.cpu) for each in streams]
        return build_tables.concatenate_tables(parts, batch_type)

    def _check_functions_exist(self, where: Selection | None, streams: Sequence[Stream]) -> None:
        if where is not None:
            pids = (pid for each in streams for pid in each.space_pids)
            SelectedRanges(where, self.images).check_functions_exist(pids)


def _select_matching_streams(where: Selection | None, streams: list[Stream]) -> list[Stream]:
    return streams if where is None else where.select_streams(streams)
