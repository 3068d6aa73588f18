"""A trace, opened: a recording, or raw PT with its code."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from rtit.errors import RtitError
from rtit.image import Images, KernelFiles, Mapping, Problem, Symbols
from rtit.image.kernel.sources import find_guest_kernels
from rtit.image.mappings import guest_path
from rtit.perfdata import PerfData, TimeConversion
from rtit.sideband import Process, ProcessExit
from rtit.trace.recording import packs
from rtit.trace.recording.info import Lookup, Origin, Recording
from rtit.trace.recording.settings import NO_SCALING, Cpu, Settings, checked
from rtit.trace.stream import Stream
from rtit.trace.tables import build_tables
from rtit.trace.tables.batch import B, Table
from rtit.trace.tables.ledger import Ledger
from rtit.trace.tables.packets import Packets
from rtit.trace.tables.rows import Branches, Events, Instructions, Rows, SyncPoints
from rtit.trace.tables.selection import Places, Selection
from rtit.trace.threads.split import Threads
from rtit.trace.time.guest_time import GuestTsc, check_guests

if TYPE_CHECKING:
    from rtit.image.guest_processes import GuestProcess

__all__ = ["Process", "ProcessExit", "Trace"]


class Trace:
    """A recording (perf.data), opened for reading. A context manager. `rtit.decode` gives the same
    of raw PT.

    `path` may also be a file open for reading in binary, or a pipe, whose contents are copied to a
    file without a name first; or a pack (see `packed`), whose files then stand for the recorded
    ones. `symfs` is a folder that holds the recorded files under their recorded paths; `path_map`
    gives single files or folders other places. Files that are not there or have changed are looked
    for by their build ids in `build_id_cache`, a folder as perf keeps it (~/.debug), and, if
    `debuginfod` is true, by the servers of DEBUGINFOD_URLS, symbols as well.
    `guest_tsc`: offset and multiplier (units of 2**-48) of the TSC that a virtual machine sees,
    where it was traced together with its host: time is the host's; of several machines by their
    VMCS pointers; "auto": offsets are found where TMA packets tell. `cpu` is DisplayFamily,
    DisplayModel and stepping of the processor, instead of what the file says. `threads`, `places`:
    see `rtit.decode`. `kernel` has the code of the kernel, where that was traced; without it the
    copies are used that `perf record --kcore` made; `guest` that of the kernel of virtual machines,
    `guest_mount` a folder in which the root file systems of some are, by the numbers of their
    processes, `guest_processes` processes in them, CR3[,VMCS]=MACHINE/PID each, whose maps and
    files are there. `jit`: files called jit-PID.dump and perf-PID.map, or folders with them, that
    tell of code that programs made; None: those beside the recording. Raises PerfDataError,
    UnsupportedError, UsageError; and ClosedError for what is in the file, here and in its streams,
    once it is closed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        symfs: str | os.PathLike[str] | None = None,
        path_map: dict[str, str] | None = None,
        cpu: Cpu | None = None,
        threads: int = 0,
        places: int = 0,
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
            # what is mapped there is there, whatever becomes of other paths
            there = os.path.realpath(guest_mount)
            own = {guest_path(each, ""): f"{there}/{each}" for each in guests}
            path_map = {there: there, **own, **(path_map or {})}
        if guest is not None:
            guests[0] = guest
        checked(Settings(threads=threads, places=places))
        check_guests(guest_tsc)
        lookup = Lookup(build_id_cache, asked=debuginfod)
        pack = packs.pack_in(path)
        data = PerfData(path) if pack is None else PerfData(pack.recording, name=pack.name)
        self._origin: Origin = Recording(
            data,
            symfs,
            path_map,
            cpu,
            threads,
            pack,
            lookup,
            guest_tsc,
            kernel,
            guests,
            jit,
            processes,
            places,
        )

    @classmethod
    def of(cls, origin: Origin) -> Self:
        """From where it comes, if that is no recording."""
        trace = cls.__new__(cls)
        trace._origin = origin
        return trace

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        from textwrap import shorten

        if self._origin.closed:
            return f"<Trace {self.path!r}, closed>"
        try:
            size, count = self._origin.size, self._origin.buffers
            command = " ".join(self.command_line)
        except RtitError as error:
            return f"<Trace {self.path!r}: {error}>"
        what = f": {shorten(command, 60, placeholder=' ...')}" if command else ""
        buffers = f"{count} buffer" + "s" * (count != 1)
        return f"<Trace {self.path!r}{what}; {buffers}, {size:,} bytes of PT>"

    def close(self) -> None:
        """Let go of the file. What was asked for before stays known."""
        self._origin.close()

    @property
    def path(self) -> str:
        """The file, or how raw PT is called."""
        return self._origin.path

    @property
    def places(self) -> int:
        """How many runs and how many edges have counts of their own where they are added up."""
        return self._origin.places

    @property
    def guest_processes(self) -> Sequence[GuestProcess]:
        """Processes of virtual machines whose code is known."""
        return self._origin.guest_processes

    @property
    def is_raw(self) -> bool:
        """Whether it is packets and code alone, as `rtit.decode` gives it, without `data`."""
        return self._origin.is_raw

    @property
    def data(self) -> PerfData:
        """The file itself. Raises UnsupportedError if it is no perf.data file."""
        return self._origin.data

    @property
    def command_line(self) -> list[str]:
        """The recorder's arguments; empty if they are not known."""
        return self._origin.command_line

    @property
    def facts(self) -> dict[str, str]:
        """What rtit wrote about a recording of its own; empty for others."""
        return self._origin.facts

    @property
    def incomplete(self) -> str | None:
        """Why the file ends early, in one sentence; None if it is whole."""
        return self._origin.incomplete

    @property
    def is_snapshot(self) -> bool:
        """Whether it holds the last packets of each buffer alone, and what was asked for before."""
        return self._origin.is_snapshot

    @property
    def filter(self) -> str | None:
        """The address filter that it was recorded with, as the kernel spells it."""
        return self._origin.filter

    @property
    def clock(self) -> TimeConversion | None:
        """TSC ticks <-> ns of the perf clock; None if that is not known."""
        return self._origin.clock

    @property
    def images(self) -> Images:
        """Code bytes of every process over time."""
        return self._origin.images

    @property
    def comms(self) -> dict[int, str]:
        """The name of every thread that has one, by tid."""
        return self._origin.comms

    @property
    def guest_comms(self) -> dict[tuple[int, int], str]:
        """The names of threads of virtual machines, by the machine's process and the tid in it."""
        return self._origin.guest_comms

    @property
    def endings(self) -> list[ProcessExit]:
        """How each process ended, where the file says it: recordings of rtit do."""
        return self._origin.endings

    @property
    def traced_instructions(self) -> dict[int, int]:
        """How many instructions of each thread were traced, by tid, as the recorder counted them:
        of threads that ended in recordings of rtit.
        """
        return self._origin.traced_instructions

    @property
    def processes(self) -> list[Process]:
        """Who started whom and how each ended; a parent comes before its children."""
        return self._origin.processes

    @cached_property
    def symbols(self) -> Symbols:
        """Names for addresses."""
        return Symbols(self.images)

    @property
    def image_problems(self) -> list[Problem]:
        """Files whose bytes are not known (missing, changed, cut), and what else is not kept."""
        return self.images.problems

    @cached_property
    def streams(self) -> list[Stream]:
        """The PT streams, in the order of the file; of raw PT there is one."""
        return self._origin.streams()

    @cached_property
    def threads(self) -> list[Stream]:
        """What each thread did: the `streams`, those of a CPU apart by thread, so that one that was
        on several CPUs has several. Each of these takes going over all packets of the CPU, and
        where the kernel was traced, too, decoding all of them: `by_thread` has an end.
        """
        return [each for stream in self.streams for each in self._threads.apart(stream)]

    @cached_property
    def _threads(self) -> Threads:
        return Threads(self.comms)

    def by_thread(self, where: Selection | None = None, *, apart: bool = False) -> list[Stream]:
        """As `threads`, those that `where` takes; but of a CPU with so many of them that going over
        its packets for each is too much work they are one stream, whose rows say who ran: beyond 16
        threads, where that would be more than 64 MB, of all CPUs together. With `apart` each is
        one. Raises UsageError if it names streams and there are none, UnsupportedError where to
        have them apart would be 256 times as much work as the trace is large.
        """
        return self._chosen(where, self._threads.within(self.streams, where, apart=apart))

    def select(self, where: Selection | None = None, *, apart: bool = False) -> list[Stream]:
        """The streams that `where` takes, for rows of what ran: as `by_thread`, but of a CPU with
        the kernel in its trace all in one, unless `where` names threads, processes or names.
        """
        named = where is not None and bool(where.tids or where.pids or where.comms)

        def is_whole(stream: Stream) -> bool:
            return not named and stream.shares is not None and not stream.shares.can_part

        found = self._threads.within(self.streams, where, is_whole, apart=apart)
        return self._chosen(where, found)

    def blocks(self, where: Selection | None = None, *, timing: bool = False) -> Table[Rows]:
        """Of all streams that `where` takes, one stream after the other, with the columns `tid` and
        `cpu`; as the following. Raises UsageError if it names streams or functions and there are
        none.
        """
        return self._all(Rows, lambda stream: stream.blocks(where, timing=timing), where)

    def instructions(
        self, where: Selection | None = None, *, timing: bool = False, perf_time: bool = False
    ) -> Table[Instructions]:
        """As `Stream.instructions`, of all streams."""

        def of(stream: Stream) -> Table[Instructions]:
            return stream.instructions(where, timing=timing, perf_time=perf_time)

        return self._all(Instructions, of, where)

    def branches(
        self, where: Selection | None = None, *, timing: bool = False, perf_time: bool = False
    ) -> Table[Branches]:
        """As `Stream.branches`, of all streams."""

        def of(stream: Stream) -> Table[Branches]:
            return stream.branches(where, timing=timing, perf_time=perf_time)

        return self._all(Branches, of, where)

    def raw_events(self, where: Selection | None = None, *, timing: bool = False) -> Table[Events]:
        """As `Stream.raw_events`, of all streams."""
        return self._all(Events, lambda stream: stream.raw_events(where, timing=timing), where)

    def sync_points(
        self, where: Selection | None = None, *, timing: bool = False
    ) -> Table[SyncPoints]:
        """As `Stream.sync_points`, of all streams."""
        return self._all(SyncPoints, lambda stream: stream.sync_points(where, timing=timing), where)

    def packets(self, where: Selection | None = None, *, timing: bool = False) -> Table[Packets]:
        """As `Stream.packets`, of all streams."""
        return self._all(
            Packets, lambda stream: stream.packets(where, timing=timing), where, self.streams
        )

    def ledger(self, where: Selection | None = None) -> Ledger:
        """As `Stream.ledger`, of all streams that `where` takes."""
        chosen = self._chosen(where, self.streams)
        return build_tables.ledgers([(each.ledger(), each.tid, each.cpu) for each in chosen])

    def _all(
        self,
        kind: type[B],
        of: Callable[[Stream], Table[B]],
        where: Selection | None,
        among: list[Stream] | None = None,
    ) -> Table[B]:
        streams = self.select(where) if among is None else self._chosen(where, among)
        if where is not None:
            Places(where, self.images).check(pid for each in streams for pid in each.pids)
        parts = [(of(each), each.tid, each.cpu) for each in streams]
        return build_tables.one_after_the_other(parts, kind)

    def _chosen(self, where: Selection | None, among: list[Stream]) -> list[Stream]:
        return among if where is None else where.streams(among)

    def mappings(self) -> dict[int, list[Mapping]]:
        """Executable mappings of every process, over all its life."""
        return {pid: list(self.images.mappings(pid)) for pid in self.images.pids}
