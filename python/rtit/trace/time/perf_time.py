"""The time that perf prints for an instruction or branch (docs/decisions/0030-times-of-perf.md).

perf's time is an estimate, not a bound. Between timing packets it stands still, like ours, with two
exceptions:

* An instruction that waits for a packet (a conditional or indirect branch, a RET) has the time
  directly before that packet. Ours is that of the start of its run. After packets that perf prints
  (PSB+, a change of CBR, power events) the next instruction has their time.
* Where user code begins, after tracing was off or from the kernel, perf adds two cycles for each
  instruction since the last timing packet. This time holds until a packet states a later one, or
  user code begins again.

The computation has three stages. `PerfTimeline` merges three decodings of the stream (perf's clock
at each packet, branches, events) into `PerfTimeSteps`: from this instruction on, perf prints
another time. `StepsByRow` locates the steps in batches of instructions. `perf_times` expands them
to one time for each instruction, or for each branch.

The decodings advance together by packet offset, no further than all have been read. Memory holds
one batch of each, or several small ones, however much happens between two instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, cast

from rtit.image import KERNEL_START
from rtit.trace.recording.byte_source import AuxDataSource, ByteSource
from rtit.trace.tables import build_tables
from rtit.trace.tables.batch import End, EventKind
from rtit.trace.tables.rows import Branches, Instructions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core
    from rtit.errors import RtitError
    from rtit.trace.recording.settings import Settings
    from rtit.trace.tables.rows import Rows
    from rtit.trace.threads.schedule import ThreadScope

    U64 = NDArray[np.uint64]
    Columns = tuple[NDArray[Any], ...]

PERF_TIME_COLUMN = "perf_time"
_CYCLES_PER_INSTRUCTION = 2
"""perf's assumption."""
_END = (1 << 64) - 1
"""An offset after all packets."""
_BATCH_PACKETS = 1 << 14


class DecodableStream(Protocol):
    """The interface of `Stream` that this module needs."""

    source: ByteSource
    settings: Settings | RtitError
    thread_scope: ThreadScope | None

    def native_decoder(
        self, *, points: bool = False, in_order: bool = False
    ) -> _core.StreamDecoder:
        """A new decoder."""

    def derive(self, **changes: Any) -> Self:
        """A copy with changed fields."""

    def chunks(self) -> Iterator[memoryview]:
        """The bytes of the packets."""

    def rows(self) -> Iterator[Rows]:
        """The blocks with events."""


class ColumnBuffer:
    """Columns in order of the first one, the packet offset. Batches are loaded on request, and
    removed up to an offset.
    """

    def __init__(self, batches: Iterator[Columns], dtypes: str) -> None:
        import numpy as np

        self._batches = batches
        self._loaded: list[Columns] = [tuple(np.zeros(0, dtype) for dtype in dtypes.split())]
        self._is_at_end = False
        self.row_count = 0
        """Rows in the buffer."""

    @property
    def complete_until(self) -> int:
        """All rows up to this offset have been loaded; -1: none."""
        if self._is_at_end:
            return _END
        last = self._loaded[-1][0]
        return int(last[-1]) - 1 if len(last) else -1

    def load_batch(self) -> None:
        """Load the next batch."""
        batch = next(self._batches, None)
        if batch is None:
            self._is_at_end = True
        elif len(batch[0]):
            self._loaded.append(batch)
            self.row_count += len(batch[0])

    def remove_until(self, offset: int) -> Columns:
        """Remove and return the rows up to this offset."""
        import numpy as np

        columns = [np.concatenate(column) for column in zip(*self._loaded, strict=True)]
        count = _count_until(columns[0], offset)
        self._loaded = [tuple(each[count:] for each in columns)]
        self.row_count -= count
        return tuple(each[:count] for each in columns)


def _count_until(offsets: U64, offset: int) -> int:
    """The number of sorted offsets up to one, which may be -1."""
    import numpy as np

    return int(np.searchsorted(offsets, np.uint64(offset), "right")) if offset >= 0 else 0


class PerfTimeSteps(NamedTuple):
    """Instructions from which another time holds, as columns of equal length."""

    offset: U64
    """The packet that reported the instruction."""
    ip: U64
    has_ip: NDArray[np.bool_]
    """True: the step is at the packet's first instruction at `ip`; false: at the first instruction
    after the packet.
    """
    starts_user_code: NDArray[np.bool_]
    time: U64
    """The time that a packet stated, after `instructions` instructions at core ratio `ratio`."""
    ratio: U64
    instructions: U64

    @classmethod
    def empty(cls) -> PerfTimeSteps:
        """No steps."""
        import numpy as np

        numbers, flags = np.zeros(0, np.uint64), np.zeros(0, np.bool_)
        return cls(numbers, numbers, flags, flags, numbers, numbers, numbers)

    def select(self, selector: slice | NDArray[Any]) -> PerfTimeSteps:
        """The steps of a slice, mask or index array."""
        return PerfTimeSteps(*cast("Any", [each[selector] for each in self]))

    def concatenate(self, *others: PerfTimeSteps) -> PerfTimeSteps:
        """These steps and the others."""
        import numpy as np

        columns = [np.concatenate(each) for each in zip(self, *others, strict=True)]
        return PerfTimeSteps(*cast("Any", columns))


class StepsByRow(NamedTuple):
    """From instruction `row` of a batch on perf prints `time`, because of `steps`; columns."""

    row: NDArray[np.int64]
    time: U64
    steps: PerfTimeSteps

    @classmethod
    def empty(cls) -> StepsByRow:
        """No steps."""
        import numpy as np

        return cls(np.zeros(0, np.int64), np.zeros(0, np.uint64), PerfTimeSteps.empty())

    def concatenate(self, *others: StepsByRow) -> StepsByRow:
        """These steps and the others."""
        import numpy as np

        row = np.concatenate([self.row, *(each.row for each in others)])
        time = np.concatenate([self.time, *(each.time for each in others)])
        return StepsByRow(row, time, self.steps.concatenate(*(each.steps for each in others)))

    def split(self, offset: int) -> tuple[StepsByRow, StepsByRow]:
        """The steps of packets up to this offset, and the others."""
        count = _count_until(self.steps.offset, offset)
        parts = (slice(count), slice(count, None))
        first, rest = (
            StepsByRow(self.row[part], self.time[part], self.steps.select(part)) for part in parts
        )
        return first, rest

    def last_time(self, before: int) -> int:
        """The time after the last step; `before` without steps."""
        return int(self.time[-1]) if len(self.time) else before


def locate_steps(offset: U64, ip: U64, steps: PerfTimeSteps) -> tuple[NDArray[np.int64], ...]:
    """Locate steps among rows with these packet offsets and addresses.

    Returns for each step: the number of rows of its packet and earlier ones; the row from which the
    step holds; 1 if this is the row of its `ip`, else 0.
    """
    import numpy as np

    start = np.searchsorted(offset, steps.offset, "left")
    end = np.searchsorted(offset, steps.offset, "right")
    if not steps.has_ip.any():
        return end, end, np.zeros(len(end), np.int64)
    addresses = np.unique(steps.ip[steps.has_ip])
    # One sorted key for each row at one of the addresses: (address, row). A binary search finds the
    # first row of an address from `start` on.
    rank = np.minimum(np.searchsorted(addresses, ip), len(addresses) - 1)
    rows = np.flatnonzero(addresses[rank] == ip)
    size = len(ip) + 1
    keys = np.append(np.sort(rank[rows] * size + rows), (len(addresses) + 1) * size)
    step_rank = np.searchsorted(addresses, steps.ip)
    first = keys[np.searchsorted(keys, step_rank * size + start)]
    is_found = steps.has_ip & (first // size == step_rank) & (first % size < end)
    return end, np.where(is_found, first % size, end), is_found.astype(np.int64)


class PerfTimeline:
    """Computes the steps of a stream, batch by batch of its instructions."""

    def __init__(self, stream: DecodableStream) -> None:
        import numpy as np

        settings = cast("Settings", stream.settings)
        self._nominal_ratio = np.uint64(settings.max_nonturbo_ratio)
        self._clock = ColumnBuffer(_clock_columns(stream, settings), "u8 u8 u8 u1")
        self._branches = ColumnBuffer(_branch_columns(stream.derive()), "u8 u8 ?")
        self._events = ColumnBuffer(_event_columns(stream.derive()), "u8 u8 ?")
        start = (0, settings.start_time, 0, 0)
        self._stated = [np.array([each], np.uint64) for each in start]
        """Offset, time, ratio and instruction count of packets that state a time."""
        self._pending = PerfTimeSteps.empty()
        """Steps at instructions of a later batch."""
        self._last_branch = self._instructions = self._time = 0
        self.final_until = -1
        """All steps up to the packet at this offset have been returned."""

    def steps_of(self, ip: U64, offset: U64) -> StepsByRow:
        """The steps up to the last packet of the next batch of instructions, with these addresses
        and packet offsets.
        """
        import numpy as np

        found, least_row, until = [], 0, int(offset[-1])
        for new_steps in self._read_steps(offset):
            steps = self._pending.concatenate(new_steps)
            end, row, is_at_ip = locate_steps(offset, ip, steps)
            # The packet also reported instructions of the next batch.
            is_later = steps.has_ip & (is_at_ip == 0) & (end == len(ip))
            count = int(np.argmax(is_later)) if is_later.any() else len(is_later)
            self._pending = steps.select(slice(count, None))
            steps = steps.select(slice(count))
            instructions = self._instructions + (row + is_at_ip)[:count]
            if not count:
                continue
            row = np.maximum.accumulate(np.maximum(row[:count], least_row))
            least_row = int(row[-1])
            time = self._times_of(steps, instructions.astype(np.uint64))
            # Of several steps at one row the last counts.
            is_last = np.diff(row, append=-1) != 0
            found.append(StepsByRow(row[is_last], time[is_last], steps.select(is_last)))
        self._instructions += len(ip)
        pending = self._pending.offset
        self.final_until = int(pending[0]) - 1 if len(pending) else until
        return StepsByRow.empty().concatenate(*found)

    def _times_of(self, steps: PerfTimeSteps, instructions: U64) -> U64:
        """The time from each step on, after this many instructions. It only decreases where user
        code begins.
        """
        import numpy as np

        ticks = np.uint64(_CYCLES_PER_INSTRUCTION) * (instructions - steps.instructions)
        if self._nominal_ratio:
            scaled = ticks * self._nominal_ratio // np.maximum(steps.ratio, 1)
            ticks = np.where(steps.ratio > 0, scaled, ticks)
        stated = steps.time + np.where(steps.starts_user_code, ticks, 0)
        times = np.concatenate([np.array([self._time], np.uint64), stated])
        # A running maximum that restarts where user code begins: ranks after a restart exceed all
        # ranks before it.
        order = np.argsort(times, kind="stable")
        rank = np.empty(len(times), np.int64)
        rank[order] = np.arange(len(times))
        rank[1:] += np.cumsum(steps.starts_user_code) * len(times)
        found = times[order][np.maximum.accumulate(rank) % len(times)][1:]
        self._time = int(found[-1])
        return cast("U64", found)

    def _read_steps(self, offset: U64) -> Iterator[PerfTimeSteps]:
        """The steps up to the last packet of a batch, in portions that bound memory."""
        buffers, until = (self._clock, self._branches, self._events), int(offset[-1])
        while (complete := min(each.complete_until for each in buffers)) < until:
            rows = sum(each.row_count for each in buffers)
            if complete >= 0 and rows > build_tables.BATCH_ROWS:
                yield self._merge_until(complete, offset)
            for each in buffers:
                if each.complete_until <= complete:
                    each.load_batch()
        yield self._merge_until(until, offset)

    def _merge_until(self, until: int, offset: U64) -> PerfTimeSteps:
        """The steps up to a packet, in order. `offset`: packets of the batch of instructions."""
        import numpy as np

        *clock, kind = self._clock.remove_until(until)
        ends_packet = kind > 0
        self._add_stated([each[~ends_packet] for each in clock], offset)
        branch, source, enters_user = self._branches.remove_until(until)
        # The first branch of a packet, if a time was stated since the packet before.
        stated = np.searchsorted(self._stated[0], branch)
        before = np.searchsorted(self._stated[0], np.uint64(self._last_branch))
        is_step = (np.diff(stated, prepend=before) != 0) | enters_user
        self._last_branch = int(branch[-1]) if len(branch) else self._last_branch
        branch, source, enters_user = branch[is_step], source[is_step], enters_user[is_step]
        event, ip, has_ip = self._events.remove_until(until)
        end, time = (each[ends_packet] for each in clock[:2])
        no = np.zeros(len(end), np.bool_)
        steps = PerfTimeSteps.empty().concatenate(
            self._steps_at(branch, source, np.ones(len(branch), np.bool_), enters_user),
            self._steps_at(event, ip, has_ip, ~has_ip),
            self._steps_at(end, end, no, no)._replace(time=time),
        )
        return steps.select(np.argsort(steps.offset, kind="stable"))

    def _steps_at(
        self, offset: U64, ip: U64, has_ip: NDArray[np.bool_], starts_user_code: NDArray[np.bool_]
    ) -> PerfTimeSteps:
        """Steps with the time that was stated directly before each packet."""
        import numpy as np

        before = np.maximum(np.searchsorted(self._stated[0], offset) - 1, 0)
        time, ratio, instructions = (each[before] for each in self._stated[1:])
        return PerfTimeSteps(offset, ip, has_ip, starts_user_code, time, ratio, instructions)

    def _add_stated(self, clock: list[U64], offset: U64) -> None:
        """Replace the stated times by the last one and new ones: offset, time, ratio of a CBR."""
        import numpy as np

        offsets, times, ratios = clock
        last = [each[-1:] for each in self._stated]
        count = self._instructions + np.searchsorted(offset, offsets, "right")
        # A CBR states no time, so the instruction count continues.
        counts = np.where(ratios > 0, 0, count).astype(np.uint64)
        ratios = np.concatenate([last[2], ratios])
        last_ratio = np.maximum.accumulate(np.where(ratios > 0, np.arange(len(ratios)), 0))
        self._stated = [
            np.concatenate([last[0], offsets]),
            np.concatenate([last[1], times]),
            ratios[last_ratio],
            np.maximum.accumulate(np.concatenate([last[3], counts])),
        ]


def _clock_columns(stream: DecodableStream, settings: Settings) -> Iterator[Columns]:
    """perf's clock at each packet: offset, time, ratio of a CBR, and whether all code after the
    packet has this time.
    """
    import numpy as np

    from rtit._core import PacketScan

    source = stream.source
    ends = source.piece_ends() if isinstance(source, AuxDataSource) else []
    scan = PacketScan(stream.chunks(), settings.native(), perf_buffer_ends=ends)
    has_more = True
    while has_more:
        has_more = scan.next(_BATCH_PACKETS) is not None
        yield tuple(map(np.asarray, scan.perf_times()))


def _branch_columns(stream: DecodableStream) -> Iterator[Columns]:
    """The first branch of each packet that decided one: packet offset, source, and whether it left
    the kernel; and all others that left the kernel.
    """
    import numpy as np

    decoder, last = stream.native_decoder(points=True, in_order=True), -1
    for batch, offsets in build_tables.decode_branches(decoder):
        decoder.timing_samples()
        is_decided = (batch.kind != End.JUMP) & (batch.kind != End.CALL)
        offset, source = np.asarray(offsets)[is_decided], batch.source[is_decided]
        enters_user = (source >= KERNEL_START) & (batch.target[is_decided] < KERNEL_START)
        is_first = np.diff(offset.astype(np.int64), prepend=last) != 0
        last = int(offset[-1]) if len(offset) else last
        is_needed = is_first | enters_user
        yield offset[is_needed], source[is_needed], enters_user[is_needed]


def _event_columns(stream: DecodableStream) -> Iterator[Columns]:
    """Packet offset, address, and whether it is known: the last branch before tracing was disabled;
    unknown where code begins.
    """
    for rows in stream.rows():
        events = rows.events
        is_off = (events.kind == EventKind.DISABLED) & (events.ip > 0)
        is_start = (events.kind == EventKind.ENABLED) | (events.kind == EventKind.RESUMED)
        is_needed = is_off | is_start
        yield events.offset[is_needed], events.ip[is_needed], is_off[is_needed]


B = TypeVar("B", Instructions, Branches)


def with_perf_times(
    stream: DecodableStream, batch_type: type[B], batches: Iterator[B]
) -> Iterator[B]:
    """Add the column `perf_time` to all instructions or branches of a stream.

    If the decodings differed, the remaining rows would have their `time`.
    """
    import numpy as np

    times, pending = perf_times(stream, batch_type), np.zeros(0, np.uint64)
    for batch in batches:
        while len(pending) < len(batch):
            pending = np.concatenate([pending, next(times, batch.time[len(pending) :])])
        yield batch.with_columns(perf_time=pending[: len(batch)])
        pending = pending[len(batch) :]


def perf_times(stream: DecodableStream, batch_type: type[B]) -> Iterator[U64]:
    """TSC ticks for each instruction or branch of a stream, in batches; for one thread of several,
    of all threads, which are decoded.

    Decodes the stream three times, for branches four times. Raises the errors of decoding.
    """
    scope = stream.thread_scope
    if scope is not None and scope.selected is not None:
        # perf's clock is that of the CPU, so the packets of all threads count.
        stream = stream.derive(thread_scope=replace(scope, selected=None))
    return _branch_times(stream) if batch_type is Branches else _instruction_times(stream)


def _instruction_times(stream: DecodableStream) -> Iterator[U64]:
    time = 0
    for count, steps, _ in _steps_by_batch(stream):
        yield _expand(time, steps.row, steps.time, count)
        time = steps.last_time(time)


def _branch_times(stream: DecodableStream) -> Iterator[U64]:
    """A branch has the time of its instruction."""
    rows = _address_buffer(stream, build_tables.decode_branches, "source")
    time, pending = 0, StepsByRow.empty()
    end = ((0, StepsByRow.empty(), _END),)
    for _, steps, until in chain(_steps_by_batch(stream), end):
        while rows.complete_until < until:
            rows.load_batch()
        offset, source = rows.remove_until(until)
        final, pending = pending.concatenate(steps).split(until)
        # A step at an instruction that is no branch holds from the next branch on.
        _, row, _ = locate_steps(offset, source, final.steps)
        yield _expand(time, row, final.time, len(offset))
        time = final.last_time(time)


def _steps_by_batch(stream: DecodableStream) -> Iterator[tuple[int, StepsByRow, int]]:
    """For each batch of instructions: their number, the steps, and the offset up to which these are
    complete.
    """
    timeline = PerfTimeline(stream.derive())
    rows = _address_buffer(stream, build_tables.decode_instructions, "ip")
    while rows.complete_until < _END:
        # A decoder's batches end at each scheduling interval. Small batches are merged.
        while rows.row_count < build_tables.BATCH_ROWS and rows.complete_until < _END:
            rows.load_batch()
        offset, ip = rows.remove_until(_END)
        if len(ip):
            steps = timeline.steps_of(ip, offset)
            yield len(ip), steps, timeline.final_until


def _address_buffer(
    stream: DecodableStream,
    decode: Callable[[_core.StreamDecoder], build_tables.BatchesWithOffsets[B]],
    address: str,
) -> ColumnBuffer:
    """Packet offsets and addresses of all instructions or branches."""
    import numpy as np

    def columns() -> Iterator[tuple[U64, U64]]:
        decoder = stream.derive().native_decoder(points=True, in_order=True)
        for batch, offset in decode(decoder):
            # The decoder pauses while too many timing samples are unread; here nothing needs them.
            decoder.timing_samples()
            yield np.asarray(offset), getattr(batch, address)

    return ColumnBuffer(columns(), "u8 u8")


def _expand(first: int, rows: NDArray[np.int64], times: U64, count: int) -> U64:
    """`count` values: `first` up to the first row, and from each row on its time."""
    import numpy as np

    values = np.concatenate([np.array([first], np.uint64), times])
    return np.repeat(values, np.diff(np.maximum.accumulate(rows), prepend=0, append=count))
