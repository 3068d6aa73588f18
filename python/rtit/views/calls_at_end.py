"""The calls at the end of a thread's trace: those that had not returned, and the last ones.

The calls are those of `Trace.calls`. To be fast in long recordings, only the last packets of the
thread are decoded: a call that began before them is unknown.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import UnsupportedError
from rtit.trace.tables.calls import Call, CallEnd

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace

DECODED_BYTES = 1 << 22
"""Bytes of packets that are decoded, up to a PSB: some ten million instructions."""


class CallsAtEnd(NamedTuple):
    """`running`: the calls that had not returned, the innermost first. `last`: the calls that began
    last, in the order in which they began.
    """

    running: list[Call]
    last: list[Call]


def calls_at_end(
    trace: Trace,
    stream: Stream,
    last: int = 0,
    *,
    decoded_bytes: int = DECODED_BYTES,
    since: int = 0,
) -> CallsAtEnd:
    """Return the calls at the end of a stream, of the last calls at most `last`.

    The callers of a call that began before the TSC value `since` are left out. Both lists are empty
    if the stream has several threads and their kernel code. Raises what decoding raises.
    """
    import numpy as np

    from rtit.trace.process_calls import table_of_calls

    end = stream.tail(decoded_bytes)
    is_whole = end is stream and not trace.is_snapshot
    running: list[Call] = []
    newest: list[Call] = []
    try:
        for batch in table_of_calls([end], trace.symbols, is_whole=is_whole):
            running += batch.select_rows(batch.end == CallEnd.RUNNING)
            if last:
                rows = np.argsort(batch.call)[-last:]
                newest = nlargest(last, [*newest, *batch.select_rows(rows)], lambda each: each.call)
    except UnsupportedError:
        return CallsAtEnd([], [])
    finally:
        end.discard_decoder()
    for number, call in enumerate(running):
        if call.begin_time < since:
            del running[number:]
            break
    return CallsAtEnd(running, newest[::-1])
