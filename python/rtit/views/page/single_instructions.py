"""Some instructions of a thread, each with its bytes, and the packets that led through them.

The trace has no packet for most instructions. A run of instructions in memory needs packets: TNT
for its conditional branches, and a TIP for an indirect branch at its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from rtit.errors import UsageError
from rtit.packets import describe
from rtit.packets.decode import decode_whole_packet
from rtit.trace import Selection
from rtit.views.instructions import list_instructions

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace

FIELDS = ["index", "ip", "insn", "asm", "sym"]
MAX_INSTRUCTIONS = 1000


class _Run(NamedTuple):
    """The last instruction of a run, and the offsets of the first and the last packet for it."""

    last: int
    first_packet: int
    last_packet: int


def single_instructions(trace: Trace, tid: int, first: int, count: int) -> dict[str, Any]:
    """Return `count` instructions of a thread, from number `first` on, as JSON has them.

    `lines` are those of `rtit instructions`. `packets` has the packets that the decoder read for a
    run, by the number of its last instruction: offset, text and bytes. Raises UsageError for an
    unknown thread, and if the thread ran on several CPUs.
    """
    streams = trace.by_thread(Selection(tids=(tid,)), always_split=True)
    if len(streams) > 1:
        raise UsageError(f"thread {tid} has several streams: see rtit instructions")
    stream, end = streams[0], first + min(count, MAX_INSTRUCTIONS)
    where = Selection(tids=(tid,), indexes=(first, end), head=end - first)
    text = b"".join(list_instructions(trace, streams, FIELDS, where)).decode()
    runs = list(_runs_between(stream, first, end))
    return {"first": first, "lines": text.splitlines(), "packets": _packets_of_runs(stream, runs)}


def _runs_between(stream: Stream, first: int, end: int) -> Iterator[_Run]:
    packet = 0
    for rows in stream.blocks(extra_columns=("index",)):
        columns = (rows.index, rows.instructions, rows.offset)
        if int(rows.index[-1]) < first:
            packet = int(rows.offset[-1])
            continue
        for index, count, offset in zip(*(each.tolist() for each in columns), strict=True):
            if index >= end:
                return
            last = index + count - 1
            if first <= last < end:
                yield _Run(last, packet, offset)
            packet = offset


def _packets_of_runs(stream: Stream, runs: Sequence[_Run]) -> dict[int, list[list[Any]]]:
    found: dict[int, list[list[Any]]] = {}
    if not runs:
        return found
    low, high = runs[0].first_packet, runs[-1].last_packet
    offsets: list[int] = []
    packets: list[list[Any]] = []
    for batch in stream.packets_with_bytes():
        if batch.end <= low:
            continue
        starts = batch.offset.tolist()
        raw = batch.raw or b""
        for begin, stop in pairwise([*starts, batch.end]):
            if low <= begin <= high:
                data = raw[begin - starts[0] : stop - starts[0]]
                offsets.append(begin)
                packets.append([begin, describe(decode_whole_packet(data)), data.hex(" ")])
        if batch.end > high:
            break
    for run in runs:
        # a TNT packet can be for several runs
        begin = bisect_left(offsets, run.first_packet)
        stop = bisect_left(offsets, run.last_packet + 1)
        found[run.last] = packets[begin:stop]
    return found
