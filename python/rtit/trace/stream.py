"""One stream of packets, and what ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtit.errors import RtitError
from rtit.image import Image
from rtit.packets import BadBytes, Packet, scan_parts
from rtit.trace.batch import Table
from rtit.trace.categories import ErrorClass, EventKind
from rtit.trace.counts import Counts
from rtit.trace.packets import PacketColumns, packet_columns
from rtit.trace.results import Branches, Instructions, SyncPoints
from rtit.trace.rows import Rows, Span
from rtit.trace.settings import Settings
from rtit.trace.source import Source
from rtit.trace.totals import EdgeTotals, RunTotals, Totals

if TYPE_CHECKING:
    from rtit import _core
    from rtit.trace.meaning.values import Happening

_ROWS = 1 << 16


@dataclass(slots=True, eq=False, repr=False)
class Stream:
    """The PT of one logical processor: a thread's (`cpu` -1), or a CPU's. Snapshots of it that
    leave something out between them are several streams: `part` counts them from 1, 0 is all.

    Of a CPU's stream `tid` and `pid` are those of the first thread that was traced there, -1 if
    the file does not say; `name` is the thread's, None if it has none. `source` has the bytes,
    `image` the code over time, `settings` how it was made, or the error that says why that is not
    known: then its packets can be had, and what ran cannot.
    """

    source: Source
    image: Image
    settings: Settings | RtitError
    cpu: int = -1
    tid: int = -1
    pid: int = -1
    name: str | None = None
    part: int = 0
    _flow: _core.Flow | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.title}, {self.size:,} bytes of PT>"

    @property
    def title(self) -> str:
        """How to call it."""
        where = f"cpu {self.cpu}, " if self.cpu >= 0 else ""
        if self.tid < 0 and self.cpu < 0:
            return "stream"
        title = f"{where}thread {self.tid}" + (f" ({self.name})" if self.name else "")
        return f"{title}, part {self.part}" if self.part else title

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

    def packets(self) -> Iterator[Packet | BadBytes]:
        """Its packets, and what lies between."""
        return scan_parts(self.parts())

    def packet_columns(self) -> Table[PacketColumns]:
        """Its packets as columns: hundreds of times as fast as one object each."""
        return Table(PacketColumns, lambda: packet_columns(self.parts()))

    def native(self) -> _core.Flow:
        """A decoder at the start of the stream, for native code and nobody else. Raises the error
        of `settings`, if it is one.
        """
        from rtit import _core

        settings = self.settings
        if isinstance(settings, RtitError):
            raise settings.with_traceback(None)
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
            start=(start.ip, start.bits, start.last_ip) if start is not None else None,
            walk=settings.walk,
        )
        return self._flow

    def rows(self) -> Iterator[Rows]:
        """What ran, in chunks; `ledger` and `counts` tell of it once the last chunk was taken."""
        flow = self.native()
        first = 0
        while (columns := flow.next(_ROWS)) is not None:
            rows = Rows.of(columns, first)
            yield rows
            first += len(rows)

    def events(self) -> Iterator[Happening]:
        """What happened beside the instructions, with its meaning: interrupts with their vectors,
        transactions, C-states, PEBS records and so on, in order (`rtit.trace.meaning`).
        """
        from rtit.trace.meaning import happenings

        return happenings(self.rows())

    def runs(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """What ran as columns (start u64, instructions u32, hash u64), as a truth file has it."""
        flow = self.native()
        while (columns := flow.runs(_ROWS)) is not None:
            yield columns

    def blocks(self) -> Table[Rows]:
        """Runs of instructions that followed each other in memory: `rows` as a table."""
        return Table(Rows, self.rows)

    def instructions(self) -> Table[Instructions]:
        """Every instruction."""
        return Table(Instructions, self._instructions)

    def branches(self) -> Table[Branches]:
        """Every branch and other transfer; `edges` adds them up."""
        return Table(Branches, self._branches)

    def sync_points(self) -> Table[SyncPoints]:
        """Every PSB+ that was read."""
        return Table(SyncPoints, self._sync_points)

    def _instructions(self) -> Iterator[Instructions]:
        import numpy as np

        flow = self.native()
        while (columns := flow.instructions(_ROWS)) is not None:
            yield Instructions(*map(np.asarray, columns))

    def _branches(self) -> Iterator[Branches]:
        import numpy as np

        flow = self.native()
        while (columns := flow.branches(_ROWS)) is not None:
            yield Branches(*map(np.asarray, columns))

    def _sync_points(self) -> Iterator[SyncPoints]:
        for rows in self.rows():
            events = rows.events
            here = events.kind == EventKind.PSB
            if here.any():
                yield SyncPoints(events.offset[here], events.ip[here], events.time[here])

    def totals(self) -> Totals:
        """How often each run of instructions and each edge was taken: without the order, a tenth of
        the time that rows take.
        """
        import numpy as np

        columns = self.native().totals()
        runs = RunTotals(
            np.frombuffer(columns["run_start"], np.uint64),
            np.frombuffer(columns["run_instructions"], np.uint32),
            np.frombuffer(columns["run_count"], np.uint64),
        )
        edges = EdgeTotals(
            np.frombuffer(columns["edge_from"], np.uint64),
            np.frombuffer(columns["edge_to"], np.uint64),
            np.frombuffer(columns["edge_kind"], np.uint8),
            np.frombuffer(columns["edge_count"], np.uint64),
        )
        return Totals(runs, edges)

    def edges(self) -> EdgeTotals:
        """The edges of `totals`."""
        return self.totals().edges

    def coverage(self) -> RunTotals:
        """What ran and how often: the runs of `totals`."""
        return self.totals().runs

    def ledger(self) -> list[Span]:
        """The account of every byte, as far as it was decoded last; decodes the whole stream
        if none has been used.
        """
        rows = self._decoded().ledger()
        return [
            Span(start, end, trust, text or "", ErrorClass.labelled(cause) if cause else None)
            for start, end, trust, cause, text, _at, _value in rows
        ]

    def counts(self) -> Counts:
        """Totals, of the same bytes as `ledger`."""
        return Counts.of(self._decoded().counts())

    def forget(self) -> None:
        """Let go of what decoding has learned; `ledger` and `counts` would decode anew."""
        self._flow = None

    def _decoded(self) -> _core.Flow:
        flow = self._flow
        if flow is None or not flow.counts():
            flow = self.native()
            flow.count()
        return flow

    def _decodable(self) -> Iterator[memoryview]:
        """The parts; what was decoded before one could not be had is not worth keeping."""
        try:
            yield from self.parts()
        except Exception:
            self._flow = None
            raise
