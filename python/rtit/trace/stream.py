"""One stream of packets, as the file has it.

One stream of packets, and what ran.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from rtit.errors import RtitError, UnsupportedError
from rtit.image import GUEST_KERNEL_PID, KERNEL_PID, KERNEL_START, Image, Images, guest_kernel_pid
from rtit.perfdata import TimeConversion
from rtit.trace.recording.byte_source import Source
from rtit.trace.recording.settings import Settings
from rtit.trace.tables import build_tables
from rtit.trace.tables.batch import B, ErrorClass, Table
from rtit.trace.tables.counts import Counts, EdgeTotals, RunTotals, Totals, places_of
from rtit.trace.tables.ledger import Ledger, Row, Span, account, with_losses
from rtit.trace.tables.packets import TIMED, TIMES, Packets, clocks_of, packets, timed_packets
from rtit.trace.tables.rows import Branches, Events, Instructions, Rows, SyncPoints
from rtit.trace.tables.selection import Filter, Selection
from rtit.trace.threads.address_spaces import COLUMNS as SPACES
from rtit.trace.threads.address_spaces import Spaces, native_spaces, pid_of_space
from rtit.trace.threads.extract import Own, Shared
from rtit.trace.threads.schedule import Shares, Whose, who_ran
from rtit.trace.time.samples import COLUMN, COLUMNS, clocked, with_ipc

if TYPE_CHECKING:
    from rtit.packets import BadBytes, Packet


@dataclass(slots=True, eq=False, repr=False)
class Undecoded:
    """What is known of a stream before it is decoded, and its packets: see `Stream`."""

    source: Source
    image: Image
    settings: Settings | RtitError
    cpu: int = -1
    tid: int = -1
    pid: int = -1
    name: str | None = None
    part: int = 0
    clock: TimeConversion | None = None
    images: Images | None = None
    spaces: Spaces | None = None
    shares: Shares | None = None
    missing: Sequence[tuple[int, str]] = ()
    kernel: Image | None = None
    guest: Image | None = None
    machine: int = 0
    counters: Mapping[int, str] | None = None
    _others: list[tuple[int, Image]] | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.title}, {self.size:,} bytes of PT>"

    @property
    def title(self) -> str:
        """How to call it."""
        where = f"cpu {self.cpu}, " if self.cpu >= 0 else ""
        if self.tid < 0 and self.cpu < 0:
            return "stream"
        title = f"{where}thread {self.tid}" + (f" ({self.name})" if self.name else "")
        threads = self.shares.threads if self.shares is not None and self.has_several else 1
        if threads > 1:
            title = f"{where}{threads} threads"
        return f"{title}, part {self.part}" if self.part else title

    @property
    def others(self) -> list[tuple[int, Image]]:
        """The address spaces beside that of `image`, in the order in which native code numbers
        them, with their processes: those of `spaces` have numbers of their own.
        """
        if self._others is None:
            self._others = self._all_others()
        return self._others

    def _all_others(self) -> list[tuple[int, Image]]:
        images = (self.spaces or {}).values()
        found = [(pid_of_space(number), image) for number, image in enumerate(images)]
        found += self.shares.others(self.image) if self.shares is not None else []
        found += [(KERNEL_PID, self.kernel)] if self.kernel is not None else []
        pid = guest_kernel_pid(self.machine)
        return found + ([(pid, self.guest)] if self.guest is not None else [])

    @property
    def has_spaces(self) -> bool:
        """Whether its rows say in which address space they are."""
        guests = self.shares is not None and self.shares.has_guests
        return bool(self.spaces) or self.guest is not None or guests

    @property
    def in_guest(self) -> list[int]:
        """Its spaces that are of virtual machines: numbers of `pids`."""
        return [number for number, pid in enumerate(self.pids) if pid <= GUEST_KERNEL_PID]

    @property
    def has_several(self) -> bool:
        """Whether its rows are of several threads."""
        return self.shares is not None and (self.shares.who is None or len(self.shares.who) > 1)

    @property
    def whose(self) -> Sequence[tuple[int, int]]:
        """The threads whose rows it has, as (pid, tid); of all that share a CPU the first one."""
        if self.shares is None or self.shares.who is None:
            return [(self.pid, self.tid)]
        return self.shares.who

    @property
    def has_one_process(self) -> bool:
        """Whether all threads whose rows it has are known to be of one process."""
        known = self.shares is None or self.shares.who is not None
        return known and len({pid for pid, _ in self.whose}) == 1

    @property
    def is_taken_out(self) -> bool:
        """Whether it is one thread's, or some, and all others are followed: `native` is of all."""
        return self._taken is not None

    @property
    def _taken(self) -> frozenset[int] | None:
        return self.shares.taken if self.shares is not None else None

    def code_at(self, ip: int, tid: int | None = None) -> Image:
        """Where the code at an address is: the kernel's, or that of a thread's process, of its own
        one without `tid`.
        """
        if self.kernel is not None and ip >= KERNEL_START:
            return self.kernel
        if tid is None or self.images is None:
            return self.image
        return self.images.image(int(tid))

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes whose code is in it, its own first."""
        return self.pid, *(pid for pid, _ in self.others)

    @property
    def size(self) -> int:
        """Bytes of PT."""
        return self.source.size

    def read(self) -> bytes:
        """All its bytes."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[memoryview]:
        """As `read`, in parts, each good until the next is taken."""
        return self.source.parts()

    def scan(self, errata: Collection[str] = ()) -> Iterator[Packet | BadBytes]:
        """Its packets as objects, with their bytes, and what lies between: hundreds of times as
        slow as `packets`. Bytes that one of `errata` spoils (SKD007, SKZ84) are no packet.
        """
        from rtit.packets import scan_chunks

        return scan_chunks(self.parts(), errata)

    def packets(self, where: Selection | None = None, *, timing: bool = False) -> Table[Packets]:
        """Its packets; times for them are reckoned if they are asked for or chosen by. Raises the
        error of `settings` then, if it is one.
        """
        wanted = self._wanted(where)
        if not timing and (wanted is None or not wanted.is_timed):
            return build_tables.table(Packets, lambda: packets(self.parts()), wanted)
        clocks = clocks_of(self._known())
        if timing:
            return build_tables.table(
                Packets, lambda: timed_packets(self.parts(), clocks), wanted, TIMED
            )
        return build_tables.table(Packets, lambda: packets(self.parts(), clocks), wanted, TIMES)

    @property
    def places(self) -> int:
        """How many runs and how many edges have counts of their own where they are added up. Raises
        the error of `settings`, if it is one.
        """
        return self._known().places or places_of(self.size)

    @property
    def last_turn(self) -> int:
        """Since when (TSC) its thread had the CPU for the last time; 0 for a stream of one."""
        return self.shares.last_turn(self.tid) if self.shares is not None else 0

    def _known(self) -> Settings:
        if isinstance(self.settings, RtitError):
            raise self.settings.with_traceback(None)
        return self.settings

    def _wanted(self, where: Selection | None) -> Filter | None:
        if where is None:
            return Filter()
        if not where.takes(self):
            return None
        return Filter.meant(where, self.pids, self.images, self.clock)


if TYPE_CHECKING:
    from rtit import _core
    from rtit.trace.events.values import Happening
    from rtit.trace.tables.block_ids import Numbered

    _Runs = tuple[_core.Column, _core.Column, _core.Column]

_NOBODY = (-2, -2)


@dataclass(slots=True, eq=False, repr=False)
class Stream(Undecoded):
    """The PT of one logical processor: a thread's (`cpu` -1), or a CPU's. Snapshots of it that
    leave something out between them are several streams: `part` counts them from 1, 0 is all.

    Of a CPU's stream `tid` and `pid` are those of the first thread that was traced there, -1 if
    the file does not say; `name` is the thread's, None if it has none. `source` has the bytes,
    `image` the code over time, `settings` how it was made, or the error that says why that is not
    known: then its packets can be had, and what ran cannot. `clock` converts its times, `images`
    knows the files in its image; None where that is not known. `spaces` has the code of other
    address spaces, `image` what is in none of them. `shares` says who had a CPU when, if its
    stream is of several threads; `of_thread` is what one of them did, `of_threads` what some: with
    the kernel in the trace that takes decoding all of them, and of `counts` instructions, branches
    and bytes are the threads', the rest is the CPU's. `missing` says at which offsets something was
    lost before it came into the file, and why. `kernel` has the code of the kernel, which is in
    every process, `guest` that of the kernel of the virtual machine that is process `machine`, 0 if
    that is not known. `counters`: what each counter of PEBS counts.

    What it decodes to are tables (see `Table`), of all of it or of the part that a `Selection`
    takes: a stream that the selection does not name has an empty table. Rows are chosen by their
    `time`, and by address: instructions and branches by where they are, blocks if any instruction
    of theirs is there. With `timing` a table has the columns `earliest`, `latest`, `cycles` and
    `frequency`, of instructions and blocks `ipc` as well (see `batch.MORE`), which takes longer.
    Where code of several address spaces is known (`spaces`, `guest`) rows have `space`, and
    functions are taken in the space that has them.
    Raises UsageError for what rows cannot be chosen by.
    """

    _flow: _core.Flow | None = None
    _own: Shared | None = None

    def native(self, *, points: bool = False, in_order: bool = False) -> _core.Flow:
        """A decoder at the start of the stream, for native code and nobody else. Raises the error
        of `settings`, if it is one.
        """
        from rtit import _core

        settings = self._known()
        start = settings.start
        self._flow = _core.Flow(
            self._decodable(),
            self.image.native,
            mtc_freq=settings.mtc_freq,
            tsc_ctc=settings.tsc_ctc,
            max_nonturbo_ratio=settings.max_nonturbo_ratio,
            start_time=settings.start_time,
            no_tnt=settings.no_tnt,
            no_retcomp=settings.no_retcomp,
            cpu=settings.cpu,
            ranges=settings.ranges,
            guest_tsc=settings.guest_tsc,
            start=(start.ip, start.bits, start.last_ip) if start is not None else None,
            spaces=native_spaces(self.spaces),
            walk=settings.walk,
            turns=self.shares.native() if self.shares is not None else None,
            kernel=self.kernel.native if self.kernel is not None else None,
            guest=(self.guest or Image()).native if self.kernel is not None else None,
            points=points,
            # in order by several if they are asked for: memory for what waits costs time
            threads=settings.threads or int(in_order),
            places=self.places,
        )
        return self._flow

    def rows(self) -> Iterator[Rows]:
        """What ran, in chunks; `ledger` and `counts` tell of it once the last chunk was taken."""
        found = self._rows(self.native(in_order=True), spaced=self.has_spaces)
        for rows in found if self._taken is None else Own(self._taken).all(found):
            if len(rows) or len(rows.events):
                yield rows

    def events(self, where: Selection | None = None) -> Iterator[Happening]:
        """What happened beside the instructions, with its meaning: interrupts with their vectors,
        transactions, C-states, PEBS records and so on, in order (`rtit.trace.events`). They are
        chosen by their `time` and `address`.
        """
        from rtit.trace.events import chosen, happenings

        wanted = self._wanted(where)
        if wanted is None:
            return iter(())
        return chosen(happenings(wanted.until_last(self.rows()), self.counters), wanted)

    def runs(self) -> Iterator[_Runs]:
        """What ran as columns (start u64, instructions u32, hash u64), as a truth file has it: each
        a buffer of numbers, which `numpy.asarray` takes as it is.
        """
        return (columns for _, columns in self.timed_runs())

    def timed_runs(self) -> Iterator[tuple[int, _Runs]]:
        """`runs`, with the time (TSC) since when the thread had the CPU, 0 for a stream of one.
        Raises UnsupportedError for one thread of several where the kernel was traced, too.
        """
        self._check_alone("runs")
        flow, shares = self.native(in_order=True), self.shares
        while (columns := flow.runs(build_tables.ROWS)) is not None:
            turn = shares.turn(flow.turn) if shares is not None else None
            yield turn.since if turn is not None else 0, columns

    def ran(self) -> list[tuple[int, int]]:
        """The threads that ran in it, as (pid, tid), in the order of their first turns."""
        itself = (self.pid, self.tid)
        if not self.has_several or isinstance(self.settings, RtitError):
            return [itself]
        if self.shares is None or not self.shares.can_part:
            return who_ran(self.blocks()) or [itself]
        flow = self.of_thread(*_NOBODY, {}).native()
        flow.count()
        turns = map(self.shares.turn, flow.visited)
        return list(
            dict.fromkeys((turn.pid, turn.tid) if turn is not None else itself for turn in turns)
        ) or [itself]

    def of_thread(self, pid: int, tid: int, names: Mapping[int, str]) -> Stream:
        """What one thread did in it; the rest of its bytes is elsewhere in the ledger."""
        return self.of_threads([(pid, tid)], names)

    def of_threads(self, whose: Sequence[tuple[int, int]], names: Mapping[int, str]) -> Stream:
        """What these (pid, tid) did in it, all in one; `pid`, `tid` and `name` are the first's."""
        pid, tid = whose[0]
        shares = self.shares
        if shares is not None:
            shares = shares.of(*whose)
        image = self.images.find_image(pid) if self.images is not None else None
        return self.anew(
            image=image or Image(), tid=tid, pid=pid, name=names.get(tid), shares=shares
        )

    def anew(self, **changes: Any) -> Self:
        """The same, but for these fields, with accounts of its own."""
        return replace(self, **changes, _flow=None, _own=None, _others=None)

    def blocks(self, where: Selection | None = None, *, timing: bool = False) -> Table[Rows]:
        """Runs of instructions that followed each other in memory: `rows` as a table."""

        def rows(flow: _core.Flow) -> build_tables.Placed[Rows]:
            found = self._rows(flow, timed=not timing, spaced=self._spaced(where))
            return ((each, each.buffer("offset")) for each in found)

        more = (*self._spaces, *self._whose)
        return self._table(Rows, rows, where, timing=timing, more=more)

    def numbered(self) -> Numbered:
        """Blocks as numbers, in order, with a table of the blocks: faster than `blocks`, and a
        tenth of the memory. Raises UnsupportedError as `timed_runs` does.
        """
        from rtit.trace.tables.block_ids import Numbered

        self._check_alone("numbers")
        return Numbered(lambda: self.native(in_order=True))

    def instructions(
        self, where: Selection | None = None, *, timing: bool = False, perf_time: bool = False
    ) -> Table[Instructions]:
        """Every instruction; with `perf_time` the time that perf prints, which takes several times
        as long, and of one thread of a CPU decodes the others, too.
        """
        if perf_time and self._parted is not None:
            return self._parted.instructions(where, timing=timing, perf_time=True)
        of = self._told(
            partial(build_tables.instructions, spaced=self._spaced(where)), timing=timing
        )
        more = (*self._spaces, *self._whose)
        return self._table(Instructions, of, where, timing=timing, more=more, perf_time=perf_time)

    def branches(
        self, where: Selection | None = None, *, timing: bool = False, perf_time: bool = False
    ) -> Table[Branches]:
        """Every branch and other transfer; `edges` adds them up. `perf_time` as `instructions`."""
        if perf_time and self._parted is not None:
            return self._parted.branches(where, timing=timing, perf_time=True)
        of = self._told(partial(build_tables.branches, spaced=self._spaced(where)), timing=timing)
        spaces = SPACES if self.has_spaces else ()
        more = (*spaces, *self._whose)
        return self._table(Branches, of, where, timing=timing, more=more, perf_time=perf_time)

    @property
    def _parted(self) -> Stream | None:
        """One thread's with all others followed, if they are not: where damage makes it doubtful
        whose something is all decodings are to agree.
        """
        shares = self.shares
        if shares is None or shares.who is None or shares.taken is not None:
            return None
        return self.anew(shares=replace(shares, follows_all=True))

    def _told(
        self, of: Callable[[_core.Flow], build_tables.Placed[B]], *, timing: bool
    ) -> Callable[[_core.Flow], build_tables.Placed[B]]:
        """The same batches with the columns of who ran, if several threads did."""
        shares = self.shares
        if shares is None:
            return of

        def told(flow: _core.Flow) -> build_tables.Placed[B]:
            whose = Whose(shares, self.in_guest, timed=not timing)
            for batch, offset in of(flow):
                if len(batch):
                    yield whose.tell(batch, flow.turn), offset

        return told

    def _spaced(self, where: Selection | None) -> bool:
        """Whether rows are to be told by spaces: they have the column, or are chosen by it."""
        places = where is not None and bool(where.functions or where.ranges)
        return self.has_spaces or (places and len(self.pids) > 1)

    @property
    def _spaces(self) -> tuple[str, ...]:
        return SPACES[:1] if self.has_spaces else ()

    @property
    def _whose(self) -> tuple[str, ...]:
        return self.shares.columns if self.shares is not None else ()

    def raw_events(self, where: Selection | None = None, *, timing: bool = False) -> Table[Events]:
        """What single packets told beside the instructions, as `rows` has it; `events` puts it
        together.
        """
        rows, more = self.blocks(timing=timing), COLUMNS if timing else ()
        found = self._wanted(where)
        return build_tables.table(Events, lambda: build_tables.of_rows(iter(rows)), found, more)

    def sync_points(
        self, where: Selection | None = None, *, timing: bool = False
    ) -> Table[SyncPoints]:
        """Every PSB+ that was read."""
        rows, more = self.blocks(timing=timing), COLUMNS if timing else ()
        found = self._wanted(where)
        return build_tables.table(
            SyncPoints, lambda: build_tables.sync_points(iter(rows)), found, more
        )

    def totals(self) -> Totals:
        """How often each run of instructions and each edge was taken: without the order, a tenth of
        the time that rows take.
        """
        if self.is_taken_out:
            return Totals(self._runs_of(self.blocks()), self._edges_of(self.branches()))
        flow = self.native()
        with self._kept():
            return build_tables.totals(flow)

    def edges(self, where: Selection | None = None) -> EdgeTotals:
        """How often each transfer was taken: of all, those of `totals`; of several address spaces
        each space's by itself, which takes the time of `branches`.
        """
        wanted = self._wanted(where)
        if wanted is None or wanted.is_ordered or wanted.by_space is not None or self.has_spaces:
            return self._edges_of(self.branches(where))
        edges = self.totals().edges
        if edges.others and where is not None and (where.functions or where.ranges):
            # those that are wanted may be among the others
            return self._edges_of(self.branches(where))
        return wanted.of(edges)

    def edges_by_process(self, where: Selection | None = None) -> EdgeTotals:
        """As `edges`, of threads of several processes each process's by itself, in the time of
        `branches`: the column `pid` says whose; KERNEL_PID: from kernel to kernel, of all.
        """
        if not self.has_several or self.has_one_process:
            return self.edges(where)
        return build_tables.edges_of(self.branches(where), self.places, by_process=True)

    def coverage(self, where: Selection | None = None) -> RunTotals:
        """What ran and how often: of all, the runs of `totals`; of a part, the blocks that have an
        instruction in it; of several address spaces blocks, each space's by itself.
        """
        if where is None and not self.has_spaces:
            return self.totals().runs
        return self._runs_of(self.blocks(where))

    def _runs_of(self, blocks: Table[Rows]) -> RunTotals:
        return build_tables.runs_of(blocks, self.places)

    def _edges_of(self, branches: Table[Branches]) -> EdgeTotals:
        return build_tables.edges_of(branches, self.places)

    def ledger(self) -> Ledger:
        """The account of every byte, as far as it was decoded last; decodes the whole stream
        if none has been used.
        """
        return Ledger.of(self._account())

    def spans(self) -> Iterator[Span]:
        """What is in `ledger`, one at a time: no columns are made."""
        return map(Span.of, self._account())

    def places_of(self, cause: ErrorClass) -> Iterator[tuple[int, int]]:
        """Where spans of this cause begin, and their bad values, of the same bytes as `ledger`."""
        rows = self._account()
        return ((row[0], row[6] or 0) for row in rows if row[3] == cause.label)

    def _account(self) -> Iterator[Row]:
        own = self._shared()
        rows = account(self._decoded())
        if own is not None:
            rows = own.ledger(rows)
        return with_losses(rows, self.missing) if self.missing else rows

    def counts(self) -> Counts:
        """Totals, of the same bytes as `ledger`."""
        own, flow = self._shared(), self._decoded()
        found = Counts.of(flow.counts())
        return found if own is None else own.counts(found, account(flow))

    def forget(self) -> None:
        """Let go of what decoding has learned; `ledger` and `counts` would decode anew."""
        self._flow = self._own = None

    def _check_alone(self, what: str) -> None:
        if self.is_taken_out:
            raise UnsupportedError(
                f"{self.title}: the kernel was traced, so that {what} are of all threads of the CPU"
            )

    def _shared(self) -> Shared | None:
        if self._own is None and self._taken is not None:
            own = Shared(self._taken)
            for rows in self._rows(self.native()):
                own.see(rows)
            for branches in self.branches():
                own.see_branches(branches)
            self._own = own
        return self._own

    def _table(
        self,
        kind: type[B],
        of: Callable[[_core.Flow], build_tables.Placed[B]],
        where: Selection | None,
        *,
        timing: bool,
        more: tuple[str, ...] = (),
        perf_time: bool = False,
    ) -> Table[B]:
        wanted = self._wanted(where)
        then: Callable[[Iterator[B]], Iterator[B]] = iter
        if perf_time:
            from rtit.trace.time.perf_time import COLUMNS as PERF_TIME
            from rtit.trace.time.perf_time import with_perf_times

            more = (*more, *PERF_TIME)
            then = partial(with_perf_times, self, kind)  # type: ignore[type-var]

        def batches() -> Iterator[B]:
            # nothing is read before the first is taken
            flow = self.native(points=timing, in_order=True)
            found: Iterator[B] = (batch for batch, _ in of(flow))
            if timing:
                told = clocked(flow, self._known().start_time, of(flow))
                found = with_ipc(told) if counted else (batch for batch, _ in told)
            with self._kept():
                found = then(found)
                yield from found if self._taken is None else Own(self._taken).all(found)

        counted = kind in (Rows, Instructions)
        times = (*COLUMNS, *((COLUMN,) if counted else ())) if timing else ()
        return build_tables.table(kind, batches, wanted, (*more, *times))

    def _rows(
        self, flow: _core.Flow, *, timed: bool = True, spaced: bool = False
    ) -> Iterator[Rows]:
        first = 0
        whose = None
        if self.shares is not None:
            whose = Whose(self.shares, self.in_guest, timed=timed)
        with self._kept():
            while (columns := flow.next(build_tables.ROWS)) is not None:
                rows = Rows.of(columns, first, spaced=spaced)
                yield rows if whose is None else whose.tell(rows, flow.turn)
                first += len(rows)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """What decoding has found so far is no account of the stream if something ended it."""
        try:
            yield
        except (Exception, KeyboardInterrupt):
            self._flow = None
            raise

    def _decoded(self) -> _core.Flow:
        flow = self._flow
        if flow is None or not flow.counts():
            flow = self.native()
            with self._kept():
                flow.count()
        return flow

    def _decodable(self) -> Iterator[memoryview]:
        """The parts; what was decoded before one could not be had is not worth keeping."""
        with self._kept():
            yield from self.parts()
