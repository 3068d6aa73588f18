"""The packets of one logical processor, and everything that they decode to.

A `Stream` joins three things: the bytes of the packets (a `ByteSource`), the code over time (an
`Image`, and more of them for other address spaces), and the `Settings` that the packets do not
contain. All results are computed from these on request; nothing is decoded when a stream is made.

Results come in three forms:

* *Tables*: `blocks`, `instructions`, `branches`, `raw_events`, `sync_points`, `packets`. A table is
  decoded from the start each time it is iterated, one batch at a time.
* *Totals without order*: `totals`, `edges`, `coverage`, `counts`. These take a tenth of the time.
* *The coverage ledger*: `ledger` says which bytes were decoded exactly, and why others were not.

The ledger and the counts belong to the decoder that ran last. If none has run, or it did not
finish, the stream is decoded once more for them.

A stream of a CPU contains all threads that ran there. `thread_scope` holds the scheduling
intervals, and `for_thread` derives a stream of one thread. `rtit.trace.threads.schedule` explains
when the decoder skips other threads, and when their rows are removed after decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from rtit.errors import RtitError, UnsupportedError, UsageError
from rtit.image import GUEST_KERNEL_PID, KERNEL_PID, KERNEL_START, Image, Images, guest_kernel_pid
from rtit.perfdata import TimeConversion
from rtit.trace.notebook_display import NotebookDisplay
from rtit.trace.recording.byte_source import ByteSource
from rtit.trace.recording.decoder_settings import Settings
from rtit.trace.tables import build_tables
from rtit.trace.tables.batch import B, ErrorClass, Table
from rtit.trace.tables.block_ids import BlockIdTable
from rtit.trace.tables.code_columns import (
    CPL_COLUMN,
    CR3_COLUMN,
    INDEX_COLUMN,
    STATE_COLUMNS,
    F,
    add_cpl,
    add_indexes,
    add_source_columns,
    parse_code_columns,
)
from rtit.trace.tables.counts import (
    Counts,
    EdgeTotals,
    RunTotals,
    Totals,
    default_max_counters,
)
from rtit.trace.tables.coverage_ledger import (
    Ledger,
    LedgerRow,
    Span,
    insert_losses,
    native_ledger_rows,
)
from rtit.trace.tables.packets import (
    PACKET_BOUND_COLUMNS,
    PACKET_TIME_COLUMNS,
    Packets,
    packet_batches,
    timed_packet_batches,
)
from rtit.trace.tables.rows import Branches, Events, Instructions, Rows, SyncPoints
from rtit.trace.tables.selection import RowFilter, Selection
from rtit.trace.threads.address_spaces import SPACE_COLUMNS, Spaces, native_spaces, space_pid
from rtit.trace.time.timing_samples import (
    BOUND_COLUMNS,
    IPC_COLUMN,
    TimedBatch,
    add_ipc,
    add_time_bounds,
)

if TYPE_CHECKING:
    from rtit import _core
    from rtit.image import Symbols
    from rtit.packets import BadBytes, Packet
    from rtit.trace.events.event_classes import TraceEvent
    from rtit.trace.threads.schedule import ThreadAttribution, ThreadId, ThreadScope
    from rtit.trace.threads.thread_extraction import ThreadAccounting

    _Runs = tuple[_core.Column, _core.Column, _core.Column]

_NO_THREAD: ThreadId = (-2, -2)


@dataclass(slots=True, eq=False, repr=False)
class Stream(NotebookDisplay):
    """The PT of one logical processor: of a thread (`cpu` is -1), or of a CPU.

    For the stream of a CPU `tid` and `pid` are those of the first thread that was traced there, -1
    if the file does not say. `part` counts snapshots of one buffer that have missing bytes between
    them, from 1; it is 0 if the stream is the whole buffer.

    Tables take a `Selection`. A stream that the selection does not match has an empty table. Rows
    are selected by `time` and by address: instructions and branches by their own address, blocks if
    at least one of their instructions matches. With `timing=True` a table also has the columns
    `earliest`, `latest`, `cycles` and `frequency`, and `ipc` for instructions and blocks (see
    `rtit.trace.tables.batch.EXTRA_COLUMNS`); this takes longer. `extra_columns` requests further
    columns of blocks, instructions and branches: `index`, `function`, `file`, `line` (see there).
    If code of several address spaces is known, rows have the column `space`, and functions are
    searched in the space of each row. Tables raise UsageError if their rows have no time or address
    to be selected by, and for unknown extra columns.
    """

    source: ByteSource
    image: Image
    """Code that belongs to no other address space, over time."""
    settings: Settings | RtitError
    """An error if the settings are unknown. The stream then has packets, but cannot be decoded."""
    cpu: int = -1
    tid: int = -1
    pid: int = -1
    name: str | None = None
    """Name of the thread; None if unknown."""
    part: int = 0
    clock: TimeConversion | None = None
    """Converts TSC ticks to nanoseconds of the perf clock."""
    images: Images | None = None
    """Code of all processes of the recording, and the files in `image`."""
    symbols: Symbols | None = None
    """Names of the code in `images`; None: they are read when they are needed."""
    spaces: Spaces | None = None
    """Code of other address spaces, by CR3, NR and VMCS pointer."""
    thread_scope: ThreadScope | None = None
    """The threads of a CPU, if several ran there."""
    recording_losses: Sequence[tuple[int, str]] = ()
    """Data that was lost before it reached the file: stream offset, and reason."""
    kernel_image: Image | None = None
    """Code of the kernel, which is part of every process."""
    guest_image: Image | None = None
    """Code of the kernel of the virtual machine `guest_machine`."""
    guest_machine: int = 0
    """Process id of the virtual machine; 0 if unknown."""
    pebs_counters: Mapping[int, str] | None = None
    """The event that each PEBS counter counts."""

    _other_spaces: list[tuple[int, Image]] | None = None
    _decoder: _core.StreamDecoder | None = None
    """The decoder that ran last. It has the ledger and the counts."""
    _accounting: ThreadAccounting | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.title}, {self.size:,} bytes of PT>"

    @property
    def title(self) -> str:
        """A short description of the CPU and threads."""
        cpu = f"cpu {self.cpu}, " if self.cpu >= 0 else ""
        if self.tid < 0 and self.cpu < 0:
            return "stream"
        title = f"{cpu}thread {self.tid}" + (f" ({self.name})" if self.name else "")
        if self.thread_scope is not None and self.has_several_threads:
            count = self.thread_scope.thread_count
            if count > 1:
                title = f"{cpu}{count} threads"
        return f"{title}, part {self.part}" if self.part else title

    # Threads and address spaces

    @property
    def has_several_threads(self) -> bool:
        """Whether the rows are of several threads."""
        scope = self.thread_scope
        return scope is not None and (scope.selected is None or len(scope.selected) > 1)

    @property
    def thread_ids(self) -> Sequence[ThreadId]:
        """The (pid, tid) of the selected threads; if all threads are, only the first one."""
        if self.thread_scope is None or self.thread_scope.selected is None:
            return [(self.pid, self.tid)]
        return self.thread_scope.selected

    @property
    def has_one_process(self) -> bool:
        """Whether all threads of the rows are known to be of one process."""
        scope = self.thread_scope
        is_known = scope is None or scope.selected is not None
        return is_known and len({pid for pid, _ in self.thread_ids}) == 1

    @property
    def needs_extraction(self) -> bool:
        """Whether all threads are decoded and the rows of some are extracted afterwards. The native
        decoder then yields the rows of all.
        """
        return self._tids_to_extract is not None

    @property
    def has_kernel_tasks(self) -> bool:
        """Whether this is a whole CPU, of which the kernel's code shows where tasks switch."""
        scope = self.thread_scope
        return (
            scope is not None
            and scope.selected is None
            and scope.schedule.switch_address is not None
            and not scope.schedule.has_guests
        )

    @property
    def has_kernel_code(self) -> bool:
        """Whether the trace of a CPU includes kernel code."""
        return self.thread_scope is not None and not self.thread_scope.schedule.user_code_only

    @property
    def _tids_to_extract(self) -> frozenset[int] | None:
        return self.thread_scope.tids_to_extract if self.thread_scope is not None else None

    @property
    def last_interval_start(self) -> int:
        """The TSC value at which the thread got the CPU for the last time; 0 if it had no other."""
        if self.thread_scope is None:
            return 0
        return self.thread_scope.schedule.last_start(self.tid)

    @property
    def other_spaces(self) -> list[tuple[int, Image]]:
        """The process and code of each address space except that of `image`.

        The native decoder numbers them in this order, from 1.
        """
        if self._other_spaces is None:
            images = (self.spaces or {}).values()
            found = [(space_pid(number), image) for number, image in enumerate(images)]
            if self.thread_scope is not None:
                found += self.thread_scope.other_images(self.image)
            if self.kernel_image is not None:
                found.append((KERNEL_PID, self.kernel_image))
            if self.guest_image is not None:
                found.append((guest_kernel_pid(self.guest_machine), self.guest_image))
            self._other_spaces = found
        return self._other_spaces

    @property
    def space_pids(self) -> tuple[int, ...]:
        """The process of each address space, by the number of the space."""
        return self.pid, *(pid for pid, _ in self.other_spaces)

    @property
    def guest_spaces(self) -> list[int]:
        """The numbers of the address spaces that belong to virtual machines."""
        return [number for number, pid in enumerate(self.space_pids) if pid <= GUEST_KERNEL_PID]

    @property
    def has_spaces(self) -> bool:
        """Whether rows have a column for their address space."""
        scope = self.thread_scope
        has_guests = scope is not None and scope.schedule.has_guests
        return bool(self.spaces) or self.guest_image is not None or has_guests

    def image_at(self, ip: int, tid: int | None = None) -> Image:
        """The image that has the code at an address: the kernel's, or that of the thread's process.

        Without `tid`: of the stream's own process.
        """
        if self.kernel_image is not None and ip >= KERNEL_START:
            return self.kernel_image
        if tid is None or self.images is None:
            return self.image
        return self.images.image(int(tid))

    def executed_threads(self) -> list[ThreadId]:
        """Return the (pid, tid) of all threads that ran, in the order of their first rows."""
        itself = (self.pid, self.tid)
        if not self.has_several_threads or isinstance(self.settings, RtitError):
            return [itself]
        if self.thread_scope is None or not self.thread_scope.schedule.user_code_only:
            from rtit.trace.threads.schedule import threads_in

            return threads_in(self.blocks()) or [itself]
        decoder = self.for_thread(*_NO_THREAD, {}).native_decoder()
        decoder.count()
        intervals = map(self.thread_scope.schedule.interval_by_ordinal, decoder.visited_intervals)
        threads = (itself if each is None else (each.pid, each.tid) for each in intervals)
        return list(dict.fromkeys(threads)) or [itself]

    def for_thread(self, pid: int, tid: int, names: Mapping[int, str]) -> Stream:
        """The stream of one thread. The ledger reports the bytes of the others as `elsewhere`."""
        return self.for_threads([(pid, tid)], names)

    def for_threads(
        self,
        threads: Sequence[ThreadId],
        names: Mapping[int, str],
        *,
        has_all_threads: bool = False,
    ) -> Stream:
        """One stream of these threads. Its `pid`, `tid` and `name` are those of the first.

        `has_all_threads`: no other thread executed anything.
        """
        pid, tid = threads[0]
        scope = self.thread_scope
        if scope is not None:
            scope = scope.select_threads(*threads, has_all_threads=has_all_threads)
        image = self.images.find_image(pid) if self.images is not None else None
        return self.copy_with(
            image=image or Image(), tid=tid, pid=pid, name=names.get(tid), thread_scope=scope
        )

    def copy_with(self, **changes: Any) -> Self:
        """Return a copy with these fields changed, without the results of earlier decoding."""
        return replace(self, **changes, _decoder=None, _accounting=None, _other_spaces=None)

    # Packets

    @property
    def size(self) -> int:
        """Bytes of PT."""
        return self.source.size

    def chunks(self) -> Iterator[memoryview]:
        """Return the bytes in order. Each chunk is valid until the next one is requested."""
        return self.source.chunks()

    def read(self, offset: int = 0) -> bytes:
        """Return the bytes from `offset` on."""
        found, at = [], 0
        for chunk in self.chunks():
            if at + len(chunk) > offset:
                found.append(bytes(chunk[max(0, offset - at) :]))
            at += len(chunk)
        return b"".join(found)

    def tail(self, size: int) -> Self:
        """Return a stream of the last `size` bytes, from the first PSB in them on (internal use).

        If there is none, or if the stream is shorter, returns the stream itself.
        """
        from rtit.packets import find_psb
        from rtit.trace.recording.byte_source import MemorySource

        if self.size <= size:
            return self
        packets = self.read(self.size - size)
        start = find_psb(packets)
        return self if start is None else self.copy_with(source=MemorySource(packets[start:]))

    def has_equal_input(self, other: Stream) -> bool:
        """Whether both streams have the same packets, code and settings, so that all results are
        equal (internal use).

        False for streams of several threads or address spaces, which are not compared.
        """
        streams = self, other
        return (
            not any(each.thread_scope or each.other_spaces for each in streams)
            and not any(isinstance(each.settings, RtitError) for each in streams)
            and self.settings == other.settings
            and 0 < self.size == other.size
            and self.image.native.has_equal_code(other.image.native)
            and _have_equal_bytes(self.chunks(), other.chunks())
        )

    def share_decoder(self, other: Stream) -> None:
        """Take `counts` and `ledger` from a stream with equal input (internal use)."""
        self._decoder = other._decoder

    def scan(self) -> Iterator[Packet | BadBytes]:
        """Return the packets as objects, and the bytes that are no packets.

        This is some hundred times slower than `packets`.
        """
        from rtit.packets import scan_chunks

        return scan_chunks(self.chunks())

    def packets(self, where: Selection | None = None, *, timing: bool = False) -> Table[Packets]:
        """The packets. They have times if `timing` is set or `where` selects by time; then this
        raises the error in `settings`, if there is one.
        """
        row_filter = self.row_filter(where)
        if not timing and (row_filter is None or not row_filter.selects_by_time):
            return build_tables.filtered_table(
                Packets, lambda: packet_batches(self.chunks()), row_filter
            )
        clocks = self._checked_settings().native()
        if timing:
            return build_tables.filtered_table(
                Packets,
                lambda: timed_packet_batches(self.chunks(), clocks),
                row_filter,
                PACKET_BOUND_COLUMNS,
            )
        return build_tables.filtered_table(
            Packets, lambda: packet_batches(self.chunks(), clocks), row_filter, PACKET_TIME_COLUMNS
        )

    def packets_with_bytes(
        self, *, timing: bool = False, errata: Collection[str] = ()
    ) -> Iterator[Packets]:
        """Iterate over batches of packets that have `raw`, for internal use.

        `errata`: names of errata (SKD007, SKZ84) that corrupt packets. With `timing`, packets have
        times as in `packets`.
        """
        if not timing:
            return packet_batches(self.chunks(), errata=errata, with_bytes=True)
        clocks = self._checked_settings().native()
        return timed_packet_batches(self.chunks(), clocks, errata=errata, with_bytes=True)

    # The native decoder

    def native_decoder(
        self, *, timing_samples: bool = False, in_order: bool = False
    ) -> _core.StreamDecoder:
        """Return a new decoder at the start of the stream, for internal use.

        `timing_samples`: times are numbers of samples (see `rtit.trace.time.timing_samples`).
        `in_order`: rows are needed in order, so one thread decodes unless `Settings.jobs` is set.
        Raises the error in `settings`, if there is one.
        """
        from rtit import _core

        settings = self._checked_settings()
        kernel = self.kernel_image
        self._decoder = _core.StreamDecoder(
            self._guarded_chunks(),
            self.image.native,
            spaces=native_spaces(self.spaces),
            schedule=self.thread_scope.native_interval_columns()
            if self.thread_scope is not None
            else None,
            kernel=kernel.native if kernel is not None else None,
            guest=(self.guest_image or Image()).native if kernel is not None else None,
            timing_samples=timing_samples,
            # Several threads must buffer rows to keep them in order, which costs time.
            jobs=settings.jobs or int(in_order),
            max_counters=self.max_counters,
            **settings.native(),
        )
        return self._decoder

    @property
    def max_counters(self) -> int:
        """The number of distinct runs, and of distinct edges, that are counted separately.

        Raises the error in `settings`, if there is one.
        """
        return self._checked_settings().max_counters or default_max_counters(self.size)

    def discard_decoder(self) -> None:
        """Free the last decoder. `ledger` and `counts` will decode the stream again."""
        self._decoder = self._accounting = None

    def _checked_settings(self) -> Settings:
        if isinstance(self.settings, RtitError):
            raise self.settings.with_traceback(None)
        return self.settings

    def _guarded_chunks(self) -> Iterator[memoryview]:
        with self._discard_decoder_on_error():
            yield from self.chunks()

    @contextmanager
    def _discard_decoder_on_error(self) -> Iterator[None]:
        """After an error the decoder has no ledger of the whole stream."""
        try:
            yield
        except (Exception, KeyboardInterrupt):
            self._decoder = None
            raise

    def _finished_decoder(self) -> _core.StreamDecoder:
        decoder = self._decoder
        if decoder is None or not decoder.counts():
            decoder = self.native_decoder()
            with self._discard_decoder_on_error():
                decoder.count()
        return decoder

    def _require_native_rows(self, results: str) -> None:
        if self.needs_extraction:
            raise UnsupportedError(
                f"{self.title}: the trace contains the kernel, so that {results} are of all "
                "threads of the CPU"
            )

    # Tables

    def rows(self) -> Iterator[Rows]:
        """The executed blocks, in batches, with their events. `ledger` and `counts` need no second
        decoding after the last batch.
        """
        batches = self._decode_rows(in_order=True, with_spaces=self.has_spaces)
        for rows in self._extract_threads(batches):
            if len(rows) or len(rows.events):
                yield rows

    def blocks(
        self,
        where: Selection | None = None,
        *,
        timing: bool = False,
        extra_columns: Collection[str] = (),
    ) -> Table[Rows]:
        """Return the executed blocks: runs of instructions that follow each other in memory."""

        requested = parse_code_columns(extra_columns)
        columns = self._decoded_columns(requested)
        decode = partial(
            build_tables.decode_rows,
            with_spaces=self._decodes_spaces(where),
            with_cr3=CR3_COLUMN in requested,
        )
        return self._decoded_table(Rows, decode, where, columns, timing=timing, requested=requested)

    def instructions(
        self,
        where: Selection | None = None,
        *,
        timing: bool = False,
        extra_columns: Collection[str] = (),
    ) -> Table[Instructions]:
        """Return every executed instruction."""
        requested = parse_code_columns(extra_columns)
        decode = partial(
            build_tables.decode_instructions,
            with_spaces=self._decodes_spaces(where),
            with_cr3=CR3_COLUMN in requested,
        )
        return self._decoded_table(
            Instructions,
            decode,
            where,
            self._decoded_columns(requested),
            timing=timing,
            requested=requested,
        )

    def branches(
        self,
        where: Selection | None = None,
        *,
        timing: bool = False,
        extra_columns: Collection[str] = (),
    ) -> Table[Branches]:
        """Return every branch and other transfer. `edges` counts them.

        Raises UnsupportedError for the `index` of one thread of several if the kernel was traced.
        """
        requested = parse_code_columns(extra_columns)
        for name in STATE_COLUMNS:
            if name in requested:
                raise UsageError(f"branches have no column {name}: use blocks or instructions")
        with_index = INDEX_COLUMN in requested
        if with_index:
            self._require_native_rows("indexes of branches")
        decode = partial(
            build_tables.decode_branches,
            with_spaces=self._decodes_spaces(where),
            with_index=with_index,
        )
        columns = (
            *(SPACE_COLUMNS if self.has_spaces else ()),
            *((INDEX_COLUMN,) if with_index else ()),
            *self._thread_columns,
        )
        return self._decoded_table(
            Branches, decode, where, columns, timing=timing, requested=requested
        )

    def raw_events(self, where: Selection | None = None, *, timing: bool = False) -> Table[Events]:
        """Return the events that single packets report. `events` combines them."""
        blocks = self.blocks(timing=timing)
        return build_tables.filtered_table(
            Events,
            lambda: build_tables.events_from_rows(iter(blocks)),
            self.row_filter(where),
            BOUND_COLUMNS if timing else (),
        )

    def sync_points(
        self, where: Selection | None = None, *, timing: bool = False
    ) -> Table[SyncPoints]:
        """Return every PSB+ that was decoded."""
        blocks = self.blocks(timing=timing)
        return build_tables.filtered_table(
            SyncPoints,
            lambda: build_tables.sync_points_from_rows(iter(blocks)),
            self.row_filter(where),
            BOUND_COLUMNS if timing else (),
        )

    def events(self, where: Selection | None = None) -> Iterator[TraceEvent]:
        """The decoded events in order: interrupts with their vectors, transactions, C-states, PEBS
        records and others (`rtit.trace.events`). `where` selects by `time` and `address`.
        """
        from rtit.trace.events import decode_events, select_events_by_time_and_address

        row_filter = self.row_filter(where)
        if row_filter is None:
            return iter(())
        rows = row_filter.stop_after_match(self.rows())
        return select_events_by_time_and_address(
            decode_events(rows, self.pebs_counters), row_filter
        )

    def block_ids(self) -> BlockIdTable:
        """Return the executed blocks as ids, with a table of the distinct blocks.

        Faster than `blocks`, with a tenth of the memory. Raises UnsupportedError for one thread of
        several if the kernel was traced.
        """
        self._require_native_rows("block ids")
        return BlockIdTable(lambda: self.native_decoder(in_order=True))

    def runs(self) -> Iterator[_Runs]:
        """The executed runs as columns (start u64, instructions u32, hash u64), as in a truth file.

        Each column is a buffer that `numpy.asarray` accepts.
        """
        return (columns for _, columns in self.runs_with_start())

    def runs_with_start(self) -> Iterator[tuple[int, _Runs]]:
        """`runs`, each with the start (TSC) of its scheduling interval; 0 for one thread.

        Raises UnsupportedError for one thread of several if the kernel was traced.
        """
        self._require_native_rows("runs")
        decoder, scope = self.native_decoder(in_order=True), self.thread_scope
        while (columns := decoder.runs(build_tables.BATCH_ROWS)) is not None:
            interval = (
                scope.schedule.interval_by_ordinal(decoder.intervals_begun)
                if scope is not None
                else None
            )
            yield interval.start if interval is not None else 0, columns

    def row_filter(self, where: Selection | None) -> RowFilter | None:
        """None if the selection does not match the stream."""
        if where is None:
            return RowFilter()
        if not where.matches(self):
            return None
        return RowFilter.from_selection(where, self.space_pids, self.images, self.clock)

    def _decodes_spaces(self, where: Selection | None) -> bool:
        """Whether the decoder must report address spaces: as a column, or for the selection."""
        selects_code = where is not None and bool(where.functions or where.ranges)
        return self.has_spaces or (selects_code and len(self.space_pids) > 1)

    def _decoded_columns(self, requested: tuple[str, ...]) -> tuple[str, ...]:
        """The columns of blocks and instructions that decoding adds, in their order."""
        spaces = SPACE_COLUMNS[:1] if self.has_spaces else ()
        cr3 = (CR3_COLUMN,) if CR3_COLUMN in requested else ()
        return (*spaces, *cr3, *self._thread_columns)

    @property
    def _thread_columns(self) -> tuple[str, ...]:
        return self.thread_scope.schedule.columns if self.thread_scope is not None else ()

    def _new_thread_attribution(self) -> ThreadAttribution | None:
        """None if only one thread ran."""
        if self.thread_scope is None:
            return None
        from rtit.trace.threads.schedule import ThreadAttribution

        return ThreadAttribution(self.thread_scope.schedule, self.guest_spaces)

    def _add_thread_columns(
        self, batches: build_tables.BatchesWithOffsets[B], decoder: _core.StreamDecoder
    ) -> Iterator[B]:
        """Add thread columns, if several threads share the CPU."""
        attribution = self._new_thread_attribution()
        for batch, _ in batches:
            if attribution is None:
                yield batch
            elif len(batch) or isinstance(batch, Rows):
                yield attribution.add_thread_columns(batch, decoder.intervals_begun)

    def _add_times_and_thread_columns(
        self, batches: build_tables.BatchesWithOffsets[B], decoder: _core.StreamDecoder
    ) -> Iterator[TimedBatch[B]]:
        """Add time bounds, and then thread columns, if several threads share the CPU."""
        attribution = self._new_thread_attribution()
        start_time = self._checked_settings().start_time
        if attribution is None:
            yield from add_time_bounds(decoder, start_time, batches)
            return
        # The decoder runs ahead of batches that wait for their bounds.
        with_intervals = (
            (attribution.add_interval_column(batch, decoder.intervals_begun), offsets)
            for batch, offsets in batches
        )
        for batch, span in add_time_bounds(decoder, start_time, with_intervals):
            yield TimedBatch(attribution.add_thread_columns_by_interval(batch), span)

    def _extract_threads(self, batches: Iterator[B]) -> Iterator[B]:
        if self._tids_to_extract is None:
            return batches
        from rtit.trace.threads.thread_extraction import ThreadFilter

        return ThreadFilter(self._tids_to_extract).filter_batches(batches)

    def _decode_rows(self, *, in_order: bool, with_spaces: bool = False) -> Iterator[Rows]:
        """Yield all rows and events of all threads, with thread columns."""
        decoder, attribution = (
            self.native_decoder(in_order=in_order),
            self._new_thread_attribution(),
        )
        with self._discard_decoder_on_error():
            for rows, _ in build_tables.decode_rows(decoder, with_spaces=with_spaces):
                yield (
                    rows
                    if attribution is None
                    else attribution.add_thread_columns(rows, decoder.intervals_begun)
                )

    def _decoded_table(
        self,
        batch_type: type[F],
        decode: Callable[[_core.StreamDecoder], build_tables.BatchesWithOffsets[F]],
        where: Selection | None,
        extra_columns: tuple[str, ...],
        *,
        timing: bool,
        requested: tuple[str, ...],
    ) -> Table[F]:
        has_ipc = timing and batch_type in (Rows, Instructions)
        adds_index = INDEX_COLUMN in requested and INDEX_COLUMN not in extra_columns

        def batches() -> Iterator[F]:
            # Runs at the first `next`: a table that nobody iterates reads nothing.
            decoder = self.native_decoder(timing_samples=timing, in_order=True)
            if timing:
                timed = self._add_times_and_thread_columns(decode(decoder), decoder)
                found = add_ipc(timed) if has_ipc else (each.batch for each in timed)
            else:
                found = self._add_thread_columns(decode(decoder), decoder)
            with self._discard_decoder_on_error():
                found = self._extract_threads(found)
                if CPL_COLUMN in requested:
                    scope = self.thread_scope
                    found = add_cpl(
                        found,
                        self.tid,
                        has_user_code_only=scope is not None and scope.schedule.user_code_only,
                    )
                yield from add_indexes(found) if adds_index else found

        if timing:
            extra_columns = (*extra_columns, *BOUND_COLUMNS)
        if has_ipc:
            extra_columns = (*extra_columns, IPC_COLUMN)
        if CPL_COLUMN in requested:
            extra_columns = (*extra_columns, CPL_COLUMN)
        if adds_index:
            extra_columns = (*extra_columns, INDEX_COLUMN)
        table = build_tables.filtered_table(
            batch_type, batches, self.row_filter(where), extra_columns
        )
        names = tuple(name for name in requested if name not in (INDEX_COLUMN, *STATE_COLUMNS))
        if not names:
            return table
        from rtit.image import Symbols

        symbols = self.symbols or Symbols(self.images or Images())
        return Table(
            batch_type,
            lambda: add_source_columns(iter(table), names, self, symbols),
            (*extra_columns, *names),
        )

    # Totals and the ledger

    def totals(self) -> Totals:
        """Return the count of each executed run of instructions and each edge, without the order.

        Takes a tenth of the time of rows.
        """
        if self.needs_extraction:
            return Totals(
                build_tables.count_runs(self.blocks(), self.max_counters),
                build_tables.count_edges(self.branches(), self.max_counters),
            )
        decoder = self.native_decoder()
        with self._discard_decoder_on_error():
            return build_tables.decode_totals(decoder)

    def totals_by_period(self, starts: Sequence[int]) -> Iterator[tuple[int, Totals]]:
        """Return the totals of each period of time: its number, and its totals.

        A period begins when the code changes to that of a time (TSC) in `starts`, which is sorted;
        period 0 comes before. Raises UnsupportedError for one thread of a trace with the kernel.
        """
        self._require_native_rows("totals by period")
        decoder = self.native_decoder()
        with self._discard_decoder_on_error():
            yield from build_tables.decode_period_totals(decoder, starts)

    def edges(self, where: Selection | None = None) -> EdgeTotals:
        """Return the count of each executed transfer.

        Takes the time of `branches` if there are several address spaces, which are counted
        separately, or if `where` selects by time.
        """
        row_filter = self.row_filter(where)
        if (
            row_filter is None
            or row_filter.depends_on_order
            or row_filter.ranges_by_space is not None
            or self.has_spaces
        ):
            return build_tables.count_edges(self.branches(where), self.max_counters)
        edges = self.totals().edges
        if edges.uncounted and where is not None and (where.functions or where.ranges):
            # The selected edges may be among those without a counter.
            return build_tables.count_edges(self.branches(where), self.max_counters)
        return row_filter.select_rows(edges)

    def edges_by_process(self, where: Selection | None = None) -> EdgeTotals:
        """`edges`, counted separately for each process (column `pid`) if there are several.

        The pid KERNEL stands for edges within the kernel, of all processes. Takes the time of
        `branches`.
        """
        if not self.has_several_threads or self.has_one_process:
            return self.edges(where)
        return build_tables.count_edges(self.branches(where), self.max_counters, by_process=True)

    def coverage(self, where: Selection | None = None) -> RunTotals:
        """Return the executed code and its counts.

        Without `where` these are the runs of `totals`; otherwise the blocks with at least one
        selected instruction. Address spaces are counted separately, by blocks.
        """
        if where is None and not self.has_spaces:
            return self.totals().runs
        return build_tables.count_runs(self.blocks(where), self.max_counters)

    def instructions_by_function(self, symbols: Symbols) -> Iterator[tuple[str, str, int]]:
        """Count the instructions of each function: (name, path of the file, instructions).

        Decodes the stream to its end. Name and path are "" if unknown. A function may occur
        repeatedly.
        """
        if not self.needs_extraction:
            names, *others = map(symbols.names, (self.tid, *self.space_pids[1:]))
            yield from self.native_decoder().functions(names, others)
            return
        import numpy as np

        for batch in self.instructions():
            tids = batch.extra_columns["tid"]
            for tid in np.unique(tids).tolist():
                is_tid = tids == tid
                indices, _ = symbols.lookup_many(tid, batch.time[is_tid], batch.ip[is_tid])
                counts = np.bincount(indices)
                for index in counts.nonzero()[0].tolist():
                    yield *symbols.table[index], int(counts[index])

    def counts(self) -> Counts:
        """Return totals of the bytes that `ledger` describes."""
        accounting, decoder = self._build_thread_accounting(), self._finished_decoder()
        counts = Counts(**decoder.counts())
        if accounting is None:
            return counts
        return accounting.counts_of_threads(counts, native_ledger_rows(decoder))

    def ledger(self) -> Ledger:
        """The coverage ledger: the status of every byte that the last decoder read. Decodes the
        whole stream if no decoder has run.
        """
        return Ledger.from_rows(self._ledger_rows())

    def spans(self) -> Iterator[Span]:
        """Return the spans of `ledger`, one at a time, without columns."""
        return map(Span.from_row, self._ledger_rows())

    def errors_of_class(self, error_class: ErrorClass) -> Iterator[tuple[int, int]]:
        """Start offset and bad value of each span of `ledger` with this error class."""
        rows = self._ledger_rows()
        return ((row[0], row[6] or 0) for row in rows if row[3] == error_class.label)

    def _ledger_rows(self) -> Iterator[LedgerRow]:
        accounting = self._build_thread_accounting()
        rows = native_ledger_rows(self._finished_decoder())
        if accounting is not None:
            rows = accounting.ledger_of_threads(rows)
        return insert_losses(rows, self.recording_losses) if self.recording_losses else rows

    def _build_thread_accounting(self) -> ThreadAccounting | None:
        if self._accounting is None and self._tids_to_extract is not None:
            from rtit.trace.threads.thread_extraction import ThreadAccounting

            accounting = ThreadAccounting(self._tids_to_extract)
            for rows in self._decode_rows(in_order=False):
                accounting.add_rows(rows)
            for branches in self.branches():
                accounting.add_branches(branches)
            self._accounting = accounting
        return self._accounting


def _have_equal_bytes(ours: Iterator[memoryview], theirs: Iterator[memoryview]) -> bool:
    """Return whether the chunks of two streams have the same bytes."""
    left = right = memoryview(b"")
    while True:
        left = left or next(ours, left)
        right = right or next(theirs, right)
        size = min(len(left), len(right))
        if not size:
            return len(left) == len(right)
        if bytes(left[:size]) != bytes(right[:size]):
            return False
        left, right = left[size:], right[size:]
