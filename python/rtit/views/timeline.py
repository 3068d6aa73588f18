"""A timeline of the calls of each thread, for Perfetto and for viewers of Chrome's trace format.

The horizontal axis is the number of instructions that the thread has executed, one for each
nanosecond of the file. Threads begin at 0 there. On a time axis most calls would have no length,
because many of them run between two timing packets.

A file has a limited number of calls: the longest ones of all threads. Calls of a stack that was
suspended may overlap calls of other stacks, so such stacks have tracks of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from rtit.text_escaping import escape_control_characters

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit.trace import Stream, Trace
    from rtit.trace.tables.calls import Calls
    from rtit.trace.tables.selection import Selection

    U64 = NDArray[np.uint64]

_PERFETTO_SEQUENCE = 1
_BATCH_EVENTS = 1 << 18
_CALL_COLUMNS = ("first", "stop", "stack", "depth", "tid")
_TIME_COLUMNS = ("begin_time", "end_time")


@dataclass
class Timeline:
    """The longest calls of some threads, as columns, and what is left out.

    `with_time`: also keep the times, for a time axis.
    `min_length`: calls with fewer instructions are not in `columns`; it rises while calls are
    added, so that there are at most `max_calls`.
    """

    max_calls: int
    min_length: int
    max_depth: int
    with_time: bool = False
    threads: dict[int, Stream] = field(default_factory=dict)
    """Each thread by its id, as a stream."""
    names: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    changed_thread: int = 0
    """Calls that ended in another thread than they began: a track cannot show them."""
    _parts: list[dict[str, Any]] = field(default_factory=list)
    _kept: int = 0

    def add(self, calls: Calls) -> None:
        """Add calls, and drop the shortest ones if there are too many."""
        import numpy as np

        self.calls += len(calls)
        changes_thread = calls.end_tid != calls.extra_columns["tid"]
        self.changed_thread += int(changes_thread.sum())
        length = np.where(changes_thread, np.uint64(0), calls.stop - calls.first)
        is_kept = (length >= max(self.min_length, 1)) & (calls.depth < self.max_depth)
        numbers = [
            self.names.setdefault(escape_control_characters(name) or "[unknown]", len(self.names))
            for name in calls.functions
        ]
        names = (*_CALL_COLUMNS, *(_TIME_COLUMNS if self.with_time else ()))
        part = {each: getattr(calls, each)[is_kept] for each in names}
        part["name"] = np.asarray(numbers, np.uint32)[calls.function[is_kept]]
        self._parts.append(part)
        self._kept += len(part["name"])
        if self._kept > 2 * self.max_calls:
            self._drop_shortest()

    def _drop_shortest(self) -> None:
        import numpy as np

        columns = self._concatenate_parts()
        length = columns["stop"] - columns["first"]
        if len(length) > self.max_calls:
            # More calls than may stay have this length or more.
            length_of_first_excess = np.partition(length, -self.max_calls - 1)[-self.max_calls - 1]
            is_kept = length > length_of_first_excess
            self.min_length = int(length_of_first_excess) + 1
            columns = {name: column[is_kept] for name, column in columns.items()}
        self._parts = [columns]
        self._kept = len(columns["tid"])

    def _concatenate_parts(self) -> dict[str, Any]:
        """Return the columns of all parts, which are dropped one by one."""
        import numpy as np

        if not self._parts:
            empty = (*_CALL_COLUMNS, *_TIME_COLUMNS, "name")
            return {name: np.empty(0, np.uint64) for name in empty}
        names = tuple(self._parts[0])
        return {name: np.concatenate([part.pop(name) for part in self._parts]) for name in names}

    def thread_name(self, tid: int) -> str:
        """Return the name of a thread."""
        return self.threads[tid].name or self.threads[tid].title

    def columns(self) -> dict[str, Any]:
        """Return the calls that are shown."""
        self._drop_shortest()
        [columns] = self._parts
        return columns

    @property
    def note(self) -> str:
        """Which calls are not shown, "" if all are."""
        hidden = self.calls - self._kept
        if not hidden:
            return ""
        return (
            f"{hidden:,} calls are not shown: those shorter than {max(self.min_length, 1):,} "
            f"instructions or nested {self.max_depth:,} or more levels deep"
            + (", or continued in another thread" if self.changed_thread else "")
        )


def collect_calls(
    trace: Trace,
    where: Selection | None = None,
    *,
    max_calls: int,
    min_length: int = 0,
    max_depth: int,
    with_time: bool = False,
) -> Timeline:
    """Return the longest calls of the selected threads. `with_time`: for a time axis."""
    found = Timeline(max_calls, min_length, max_depth, with_time)
    found.threads = trace.threads_of_calls(trace.call_streams(where), where)
    for batch in trace.calls(where):
        found.add(batch)
    return found


@dataclass
class _ThreadEvents:
    """The begins and ends of calls of a thread. `names`: 0 for an end. Lane 0 is the thread's."""

    tid: int
    lanes: U64
    times: U64
    names: U64


def _events_by_thread(timeline: Timeline, trace: Trace) -> Iterator[_ThreadEvents]:
    import numpy as np

    columns = timeline.columns()
    by_tid = np.argsort(columns["tid"], kind="stable")
    tids = columns["tid"][by_tid]
    for tid in timeline.threads:
        selected = by_tid[slice(*np.searchsorted(tids, [tid, tid + 1]))]
        rows = {name: column[selected] for name, column in columns.items()}
        lanes = _lanes_of_stacks(rows["stack"], rows["first"], rows["stop"])
        depths = rows["depth"].astype(np.int64)
        count = len(lanes)
        index = np.concatenate([rows["first"], rows["stop"]])
        is_begin = np.repeat([True, False], count)
        # At one instruction, ends come first: inner calls end before outer calls, and begin after.
        order = np.lexsort((np.concatenate([depths, -depths]), is_begin, index))
        if timeline.with_time:
            times = np.concatenate([rows["begin_time"], rows["end_time"]])
            times = times if trace.clock is None else trace.clock.nanoseconds(times)
        else:
            times = index
        # A lower bound of an earlier event is one of all later events.
        times = np.maximum.accumulate(times[order]).astype(np.uint64)
        names = np.concatenate(
            [rows["name"].astype(np.uint64) + np.uint64(1), np.zeros(count, np.uint64)]
        )
        both = np.concatenate([lanes, lanes])
        yield _ThreadEvents(tid, both[order], times, names[order])


def _lanes_of_stacks(stacks: U64, first: U64, stop: U64) -> U64:
    """Return a lane for each call, so that stacks of one lane do not overlap."""
    import numpy as np

    numbers, index = np.unique(stacks, return_inverse=True)
    begins = np.full(len(numbers), np.iinfo(np.uint64).max, np.uint64)
    ends = np.zeros(len(numbers), np.uint64)
    np.minimum.at(begins, index, first)
    np.maximum.at(ends, index, stop)
    lanes = np.zeros(len(numbers), np.uint64)
    free: list[int] = []
    running: list[tuple[int, int]] = []
    used = 0
    for at in np.argsort(begins, kind="stable").tolist():
        while running and running[0][0] <= begins[at]:
            heappush(free, heappop(running)[1])
        if free:
            lane = heappop(free)
        else:
            lane, used = used, used + 1
        lanes[at] = lane
        heappush(running, (int(ends[at]), lane))
    return lanes[index]


@dataclass
class Track:
    """The begins and ends of calls that are nested, in order. Lane 0 is the thread's.

    `names` has the name at the end as well. `depths`: number of callers on the track.
    """

    tid: int
    lane: int
    is_begin: NDArray[np.bool_]
    times: U64
    names: U64
    depths: NDArray[np.int64]


def iterate_tracks(timeline: Timeline, trace: Trace) -> Iterator[Track]:
    """Iterate over the tracks of each thread; a thread without calls has an empty one."""
    import numpy as np

    for events in _events_by_thread(timeline, trace):
        by_lane = np.argsort(events.lanes, kind="stable")
        lanes, times, names = (
            column[by_lane] for column in (events.lanes, events.times, events.names)
        )
        is_begin = names != 0
        # Each lane ends at depth 0, where the next one begins.
        depths = np.cumsum(np.where(is_begin, 1, -1)) - is_begin
        # At one depth of a lane, begins and ends alternate.
        by_depth = np.lexsort((depths, lanes))
        names[by_depth[1::2]] = names[by_depth[::2]]
        lane_count = int(lanes[-1]) + 1 if len(lanes) else 1
        starts = np.searchsorted(lanes, np.arange(lane_count + 1))
        for lane in range(lane_count):
            rows = slice(starts[lane], starts[lane + 1])
            numbers = names[rows] - np.uint64(1)
            yield Track(events.tid, lane, is_begin[rows], times[rows], numbers, depths[rows])


def lane_name(lane: int) -> str:
    """Return the name of a track that is not the thread's."""
    return f"other stacks {lane}"


# Perfetto. The numbers are those of fields in its protocol buffers.


def perfetto_trace(timeline: Timeline, trace: Trace, *, scale: int = 1) -> Iterator[bytes]:
    """Iterate over the parts of a trace for https://ui.perfetto.dev.

    A time axis has nanoseconds of the recording's clock, a lower bound. `scale`: nanoseconds of the
    file for each instruction or nanosecond.
    """
    import numpy as np

    from rtit._core import encode_perfetto_events

    yield _packet({13: 1, 12: {1: {1: 1, 2: "call"}}})
    for name, number in timeline.names.items():
        yield _packet({13: 2, 12: {2: {1: number + 1, 2: name}}})
    tracks = 1
    process_tracks: dict[int, int] = {}
    for events in _events_by_thread(timeline, trace):
        pid = timeline.threads[events.tid].pid
        if pid not in process_tracks:
            process_tracks[pid] = tracks
            process = {1: pid, 6: process_name(trace, pid)}
            yield _packet({60: {1: tracks, 3: process}})
            tracks += 1
        lanes = int(events.lanes.max()) + 1 if len(events.lanes) else 1
        thread = {1: pid, 2: events.tid, 5: timeline.thread_name(events.tid)}
        yield _packet({60: {1: tracks, 4: thread, 5: process_tracks[pid]}})
        for lane in range(1, lanes):
            yield _packet({60: {1: tracks + lane, 2: lane_name(lane), 5: tracks}})
        if timeline.note:
            note = {3: 1, 9: 3, 11: tracks, 23: timeline.note}
            time = int(events.times[0]) if len(events.times) else 0
            yield _packet({8: time, 13: 2, 11: note})
        for part in _parts(len(events.lanes)):
            yield encode_perfetto_events(
                events.lanes[part] + np.uint64(tracks),
                events.times[part] * np.uint64(scale),
                events.names[part],
            )
        tracks += lanes


def process_name(trace: Trace, pid: int) -> str:
    """Return the name of the first thread of a process."""
    return escape_control_characters(trace.comms.get(pid) or f"process {pid}")


def _parts(count: int) -> Iterator[slice]:
    for start in range(0, count, _BATCH_EVENTS):
        yield slice(start, start + _BATCH_EVENTS)


def _packet(fields: dict[int, Any]) -> bytes:
    return _encode_message({1: {10: _PERFETTO_SEQUENCE, **fields}})


def _encode_message(fields: dict[int, Any]) -> bytes:
    """Return a protocol buffer: numbers, texts and messages by field number."""
    parts = []
    for number, value in fields.items():
        if isinstance(value, int):
            parts += [_varint(number << 3), _varint(value)]
            continue
        data = value.encode() if isinstance(value, str) else _encode_message(value)
        parts += [_varint(number << 3 | 2), _varint(len(data)), data]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


# Chrome

_FIRST_LANE_TID = 1 << 31
"""Thread number of the first track that is no thread: above all thread ids."""


def chrome_trace(timeline: Timeline, trace: Trace) -> Iterator[bytes]:
    """Iterate over the parts of a trace in the Trace Event Format, as JSON."""
    import numpy as np

    from rtit._core import encode_chrome_events

    labels = [json.dumps(name) for name in timeline.names]
    yield b'{"displayTimeUnit":"ns","traceEvents":[\n'
    metadata: list[dict[str, Any]] = []
    next_tid = _FIRST_LANE_TID
    for events in _events_by_thread(timeline, trace):
        pid = timeline.threads[events.tid].pid
        lanes = int(events.lanes.max()) + 1 if len(events.lanes) else 1
        tids = [events.tid, *range(next_tid, next_tid + lanes - 1)]
        next_tid += lanes - 1
        title = timeline.thread_name(events.tid)
        names = [title, *(f"{title}: {lane_name(lane)}" for lane in range(1, lanes))]
        metadata += [_chrome_name("process_name", pid, events.tid, process_name(trace, pid))]
        metadata += [
            _chrome_name("thread_name", pid, tid, name)
            for tid, name in zip(tids, names, strict=True)
        ]
        tracks = np.asarray(tids, np.uint64)[events.lanes]
        for part in _parts(len(events.lanes)):
            yield encode_chrome_events(
                max(pid, 0), tracks[part], events.times[part], events.names[part], labels
            )
    yield from _json_items(metadata)
    yield b'],"otherData":' + json.dumps({"note": timeline.note}).encode() + b"}\n"


def _chrome_name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}


def _json_items(items: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    yield ",\n".join(map(json.dumps, items)).encode()
