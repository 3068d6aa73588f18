"""When a row ran: timing samples, the bounds that they give, and instructions per cycle.

Every timing packet is a *sample*. A TSC packet states the time, and so does an MTC after one: these
samples are *known*. A CYC states how many core cycles passed.

A decoder made with `points` numbers the samples and gives rows the number of the last sample before
them in place of a time. From the samples around a row follow its bounds:

* A row ran before the next known packet (section 33.4.2.12), and started after the known packet
  before it.
* CYCs narrow this. Code before a CYC ran before the CYC's cycle, code after it no earlier (section
  33.3.6.2).
* Between two known samples all cycles take the same time (33.8.3.4), if every cycle was counted and
  no CBR reported another frequency. A *span* is a part of the stream in which every cycle was
  counted.

A row's bounds are final once a known sample after the row was read, so batches wait for it
(`add_time_bounds`). If it is too far away, the batch is released without this bound.

A CYC counts the cycles since the CYC before it (section 33.4.2.14). Rows with the same number of
`cycles` are a *stretch*; `add_ipc` divides its instructions by the cycles up to the next stretch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from rtit.trace.tables.batch import Batch
from rtit.trace.tables.code_columns import instruction_counts
from rtit.trace.tables.rows import Events, Rows
from rtit.trace.tables.selection import LATEST

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core

    SampleReader = _core.StreamDecoder | _core.PacketScan


B = TypeVar("B", bound=Batch)

BOUND_COLUMNS = ("earliest", "latest", "cycles", "frequency")
"""The columns of `add_time_bounds`, see `rtit.trace.tables.batch.EXTRA_COLUMNS`."""
IPC_COLUMN = "ipc"
"""The column of `add_ipc`."""

_MAX_SAMPLES = 1 << 20
"""With more samples, every other one of the older half is dropped, which widens bounds."""
_MAX_PENDING_BATCHES = 16
"""Batches that wait for a known sample, or for the end of a stretch. Beyond that it is unknown."""

_SLACK = 2
"""In cycles and ticks: some processors count by two, and times are accurate to a tick."""
_DRIFT = 1 / 128
"""Relative deviation of a clock that no CBR reports: half a percent with a spread spectrum."""
_MAX_DISTANCE = 1 << 48
"""Cycles or ticks between two known samples, so that a double still has their fraction."""

_SAMPLE = [
    *((name, "u8") for name in ("number", "offset", "time", "cycles", "span")),
    ("frequency", "f8"),
    *((name, "?") for name in ("known", "counted", "exact", "chained")),
]
"""A sample. `counted`: a CYC with at least one cycle. `exact`: known, in the cycle of the CYC
directly before it. `chained`: no known sample directly before it was dropped.
"""


class TimingSamples:
    """The timing samples of a stream, in order, as far as they are needed.

    `number` counts them over the whole stream. Number 0 is the start of the stream, with
    `start_time`.
    """

    def __init__(self, reader: SampleReader, start_time: int = 0) -> None:
        import numpy as np

        self._reader = reader
        self._count = 0
        self._cyc_size = 0
        """Bytes of the last sample if it counted, else 0."""
        self.rows: NDArray[np.void] = np.zeros(1, _SAMPLE)
        self.rows["time"] = start_time
        self.rows["frequency"] = np.nan

    def read_new(self) -> None:
        """Append the samples that the decoder has read since the last call."""
        import numpy as np

        columns = self._reader.timing_samples()
        new = np.zeros(len(columns["offset"]), _SAMPLE)
        if not len(new):
            return
        for name, column in columns.items():
            new[name] = column
        new["number"] = np.arange(self._count + 1, self._count + 1 + len(new))
        self._count += len(new)
        passed = np.diff(new["cycles"], prepend=self.rows["cycles"][-1])
        new["counted"] = passed > 0
        sizes = np.append(self._cyc_size, np.where(new["counted"], _cyc_size(passed), 0))
        self._cyc_size = int(sizes[-1])
        follows_cyc = np.diff(new["offset"], prepend=self.rows["offset"][-1]) == sizes[:-1]
        new["exact"] = new["known"] & follows_cyc & ~new["counted"]
        new["chained"] = new["known"]
        self.rows = np.append(self.rows, new)

    def drop_before(self, number: int) -> None:
        """Drop samples that no row with this number or a higher one needs."""
        import numpy as np

        rows = self.rows
        at = int(np.searchsorted(rows["number"], np.uint64(number), "right"))
        known = np.flatnonzero(rows["known"][:at])
        first = int(known[-1]) if len(known) else 0
        keep = np.ones(len(rows), np.bool_)
        keep[1:first] = False
        if len(rows) - first > _MAX_SAMPLES:
            keep[first + 1 : first + _MAX_SAMPLES // 2 : 2] = False
        if keep.all():
            return
        known = np.flatnonzero(rows["known"])
        rows["chained"][known[1:][~keep[known[:-1]]]] = False
        self.rows = rows[keep]

    @property
    def final_offset(self) -> int:
        """The bounds of rows before this offset are final; -1 if none are."""
        import numpy as np

        rows = self.rows
        known, counted = np.flatnonzero(rows["known"]), np.flatnonzero(rows["counted"])
        last = len(known) - 1
        if len(counted):
            # The next CYC may still narrow the first known sample after the last CYC.
            first = int(np.searchsorted(known, counted[-1]))
            after = rows[known[first:]]
            if len(after) and not after["exact"][0] and after["span"][0] == rows["span"][-1]:
                last = first - 1
        return int(rows["offset"][known[last]]) if last >= 0 else -1

    def time_bounds_of_rows(
        self,
        number: NDArray[np.uint64],
        offset: NDArray[np.uint64],
        *,
        rows_are_packets: bool = False,
    ) -> tuple[NDArray[np.intp], NDArray[np.uint64], NDArray[np.uint64]]:
        """For rows that start after the samples `number` and end with the packets at `offset`: the
        index of the sample in `rows`, the earliest and the latest time.

        `rows_are_packets`: a sample at the offset of a row is the row, and states its time.
        """
        import numpy as np

        at = np.searchsorted(self.rows["number"], number, "right") - 1
        lower, upper = self._time_bounds_of_samples()
        earliest = lower[at]
        side: Literal["left", "right"] = "left" if rows_are_packets else "right"
        # The first sample is the start of the stream, not a packet.
        following = np.searchsorted(self.rows["offset"][1:], offset, side) + 1
        latest = upper[following]
        # The TSC may have gone back.
        return at, earliest, np.maximum(latest, earliest)

    def _time_bounds_of_samples(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """For each sample the earliest time of code after it and the latest time of code before it;
        of the latter one more for code before the end.
        """
        import numpy as np

        rows = self.rows
        indices, cycles, counted = np.arange(len(rows)), rows["cycles"], rows["counted"]
        at = np.flatnonzero(rows["known"])
        known = rows[at]
        # The cycles at a known sample: exact, or at most those of the next CYC.
        cycs = np.append(np.flatnonzero(counted), len(rows))
        next_cyc = np.append(rows, np.zeros(1, _SAMPLE))[cycs[np.searchsorted(cycs, at)]]
        exact, in_span = known["exact"], next_cyc["counted"] & (next_cyc["span"] == known["span"])
        high = np.where(exact, known["cycles"], next_cyc["cycles"])
        # Gap i is between the known samples i-1 and i; also before the first and after the last.
        gap = np.searchsorted(at, indices, "right")
        start, end = _values_around_gaps(known["time"])
        low_start, low_end = _values_around_gaps(known["cycles"])
        high_start, high_end = _values_around_gaps(high)
        bounded_start, bounded_end = _values_around_gaps(exact | in_span)
        span_start, span_end = _values_around_gaps(known["span"])
        chained = np.append(known["chained"], False)
        chained[:1] = False
        ticks = end - start
        linked = chained & (span_start == span_end) & (end >= start) & (ticks < _MAX_DISTANCE)

        end[-1] = LATEST
        lower, upper = start[gap], np.where(rows["known"], rows["time"], end[gap])
        passes = high_end - high_start
        good = linked & bounded_start & bounded_end
        good &= (high_end > high_start) & (passes < _MAX_DISTANCE)
        selected = np.flatnonzero(good[gap])
        at_gap = gap[selected]
        passed = _signed_differences(cycles[selected], high_start[at_gap]) - _SLACK
        reached = passed * ticks[at_gap] / passes[at_gap]
        reached = np.floor(reached - _max_clock_drift(reached, ticks[at_gap])) - _SLACK
        lower[selected] += reached.clip(0, ticks[at_gap]).astype(np.uint64)

        passes = low_end - low_start
        good = linked & (low_end > low_start) & (passes < _MAX_DISTANCE)
        selected = np.flatnonzero(good[gap] & counted)
        at_gap = gap[selected]
        passed = _signed_differences(cycles[selected], low_start[at_gap]) + _SLACK
        reached = passed * ticks[at_gap] / passes[at_gap]
        reached = np.ceil(reached + _max_clock_drift(reached, ticks[at_gap])) + _SLACK
        upper[selected] = start[at_gap] + reached.clip(0, ticks[at_gap]).astype(np.uint64)
        # A sample without time and cycles has the upper bound of the next one with either.
        has_bound = np.append(np.flatnonzero(rows["known"] | counted), len(rows))
        upper = np.append(upper, np.uint64(LATEST))
        return lower, np.append(upper[has_bound[np.searchsorted(has_bound, indices)]], upper[-1])


def _values_around_gaps(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the values of the known samples before and after each gap; zero if there is none."""
    import numpy as np

    nothing = np.zeros(1, values.dtype)
    return np.append(nothing, values), np.append(values, nothing)


def _signed_differences(
    values: NDArray[np.uint64], others: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Signed differences, which must fit 64 bits."""
    import numpy as np

    return (values - others).astype(np.int64).astype(np.float64)


def _max_clock_drift(
    reached: NDArray[np.float64], ticks: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Return how far time may deviate from a straight line at `reached` ticks after the first of
    two known samples that are `ticks` apart.
    """
    import numpy as np

    return np.minimum(reached, ticks - reached).clip(0) * _DRIFT


def _cyc_size(cycles: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Bytes of a CYC: the first has 5 bits, each other 7 (Table 33-33)."""
    import numpy as np

    size = np.ones(len(cycles), np.int64)
    for bits in range(5, 64, 7):
        size += cycles >> np.uint64(bits) > 0
    return size


class TimedBatch(NamedTuple, Generic[B]):
    """A batch with times, and the span of each row, in which every cycle was counted."""

    batch: B
    span: NDArray[np.uint64]


class _PendingBatch(NamedTuple):
    """A batch whose times are numbers of samples."""

    batch: Batch
    offset: NDArray[np.uint64]
    """The last packet of each row."""

    def is_before(self, offset: int) -> bool:
        """Whether all rows and events were reported before the packet at an offset."""
        offsets = [self.offset, *(each.offset for each in _event_tables_of_batch(self.batch))]
        return all(int(each.max()) < offset for each in offsets if len(each))

    def first_sample(self, default: int) -> int:
        """Return the lowest sample number of all rows and events."""
        batches = (self.batch, *_event_tables_of_batch(self.batch))
        return min((int(each.time.min()) for each in batches if len(each)), default=default)

    def last_sample(self, default: int) -> int:
        """The sample number of the last row. Later rows have no lower one, but later events may."""
        return int(self.batch.time[-1]) if len(self.batch) else default

    def with_times(self, samples: TimingSamples, *, rows_are_packets: bool) -> TimedBatch[Any]:
        timed = _with_times(self.batch, samples, self.offset, rows_are_packets=rows_are_packets)
        if not isinstance(timed.batch, Rows):
            return timed
        events = _with_times(timed.batch.events, samples, timed.batch.events.offset).batch
        return TimedBatch(timed.batch.replace(events=events), timed.span)


def _with_times(
    batch: B,
    samples: TimingSamples,
    offset: NDArray[np.uint64],
    *,
    rows_are_packets: bool = False,
) -> TimedBatch[B]:
    """Return the batch with times in place of sample numbers, and with bounds."""
    import numpy as np

    at, earliest, latest = samples.time_bounds_of_rows(
        batch.time, offset, rows_are_packets=rows_are_packets
    )
    columns = {
        "earliest": earliest,
        "latest": latest,
        "cycles": samples.rows["cycles"][at],
        "frequency": samples.rows["frequency"][at],
    }
    time = np.clip(samples.rows["time"][at], earliest, latest)
    span = samples.rows["span"][at]
    if rows_are_packets:
        return TimedBatch(batch.replace(extra_columns={"time": time, **columns}), span)
    extra = {**batch.extra_columns, **columns}
    return TimedBatch(batch.replace(time=time, extra_columns=extra), span)


def _event_tables_of_batch(batch: Batch) -> list[Events]:
    return [batch.events] if isinstance(batch, Rows) else []


def add_time_bounds(
    reader: SampleReader,
    start_time: int,
    batches: Iterator[tuple[B, Sized]],
    *,
    rows_are_packets: bool = False,
) -> Iterator[TimedBatch[B]]:
    """Add `BOUND_COLUMNS` to the batches of a decoder that was made with `points`.

    Each batch comes with the offset of the last packet of each row, and waits for a known sample
    after it. `rows_are_packets`: rows are packets, which may be samples themselves; a batch without
    rows is kept, because it may have bytes that are no packet.
    """
    import numpy as np

    samples = TimingSamples(reader, start_time)
    pending: deque[_PendingBatch] = deque()
    needed_from = 0
    for batch, offset in batches:
        samples.read_new()
        if len(batch) or rows_are_packets or any(map(len, _event_tables_of_batch(batch))):
            pending.append(_PendingBatch(batch, np.asarray(offset)))
        final_offset = samples.final_offset
        while pending and (
            len(pending) > _MAX_PENDING_BATCHES or pending[0].is_before(final_offset)
        ):
            first = pending.popleft()
            needed_from = first.last_sample(needed_from)
            yield first.with_times(samples, rows_are_packets=rows_are_packets)
        next_needed = pending[0].first_sample(needed_from) if pending else needed_from
        samples.drop_before(min(needed_from, next_needed))
    samples.read_new()
    for each in pending:
        yield each.with_times(samples, rows_are_packets=rows_are_packets)


def add_ipc(batches: Iterator[TimedBatch[B]]) -> Iterator[B]:
    """Add `IPC_COLUMN` to batches of instructions or blocks."""
    stretch = _OpenIpcStretch()
    pending: deque[tuple[B, NDArray[np.float64]]] = deque()
    for batch, span in batches:
        pending.append((batch, stretch.add_batch(batch, span)))
        while len(pending) > min(len(stretch.pieces), _MAX_PENDING_BATCHES):
            if len(pending) == len(stretch.pieces):
                del stretch.pieces[0]
            done, ipc = pending.popleft()
            yield done.with_columns(**{IPC_COLUMN: ipc})
    for done, ipc in pending:
        yield done.with_columns(**{IPC_COLUMN: ipc})


class _OpenIpcStretch:
    """The stretch at the end of the last batch, whose cycles are not yet known.

    `pieces` are its rows in the columns of pending batches, one slice for each batch.
    """

    def __init__(self) -> None:
        self.pieces: list[NDArray[np.float64]] = []
        self._cycles = self._span = -1
        self._instructions = 0

    def add_batch(self, batch: Batch, span: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the column of a batch. Rows of the open stretch are NaN until the stretch ends."""
        import numpy as np

        ipc = np.full(len(batch), np.nan)
        if not len(batch):
            self.pieces += [ipc] if self.pieces else []
            return ipc
        cycles = batch.cycles
        changes = (cycles[1:] != cycles[:-1]) | (span[1:] != span[:-1])
        starts = np.append(0, np.flatnonzero(changes) + 1)
        counts = np.add.reduceat(instruction_counts(batch), starts)
        cycles, span = cycles[starts], span[starts]
        continues = (self._cycles, self._span) == (int(cycles[0]), int(span[0]))
        if continues:
            counts[0] += self._instructions
            self.pieces.append(ipc[: starts[1] if len(starts) > 1 else len(ipc)])
        else:
            self._end_stretch(int(cycles[0]), is_counted=bool(self._span == span[0]))
            self.pieces = []
        if len(starts) > 1:
            is_known = (span[1:] == span[:-1]) & (cycles[1:] > cycles[:-1]) & (cycles[:-1] > 0)
            passed = np.where(is_known, cycles[1:] - cycles[:-1], 1)
            ipcs = np.where(is_known, counts[:-1] / passed, np.nan)
            ipc[: starts[-1]] = np.repeat(ipcs, np.diff(starts))
            for piece in self.pieces:
                piece[:] = ipcs[0]
            self.pieces = []
        if not self.pieces:
            self.pieces = [ipc[starts[-1] :]]
        self._cycles, self._span = int(cycles[-1]), int(span[-1])
        self._instructions = int(counts[-1])
        return ipc

    def _end_stretch(self, cycles: int, *, is_counted: bool) -> None:
        """End the stretch at this number of cycles."""
        if is_counted and cycles > self._cycles > 0:
            for piece in self.pieces:
                piece[:] = self._instructions / (cycles - self._cycles)
