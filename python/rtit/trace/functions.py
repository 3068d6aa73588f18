"""How many instructions ran in each function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.image import Symbols
    from rtit.trace.stream import Stream


def functions(stream: Stream, symbols: Symbols) -> Iterator[tuple[str, str, int]]:
    """(name, path of the file, instructions) of a stream, decoded to its end; "" where nothing is
    known. One function may come more than once.
    """
    if not stream.is_taken_out:
        names, *others = map(symbols.names, (stream.tid, *stream.pids[1:]))
        yield from stream.native().functions(names, others)
        return
    import numpy as np

    for batch in stream.instructions():
        tids = batch.more["tid"]
        for tid in np.unique(tids).tolist():
            own = tids == tid
            numbers, _ = symbols.lookup_many(tid, batch.time[own], batch.ip[own])
            counted = np.bincount(numbers)
            for number in counted.nonzero()[0].tolist():
                yield *symbols.table[number], int(counted[number])
