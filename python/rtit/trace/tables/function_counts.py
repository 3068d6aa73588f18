"""Instructions of a stream by function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.image import Symbols
    from rtit.trace.stream import Stream


def instructions_by_function(stream: Stream, symbols: Symbols) -> Iterator[tuple[str, str, int]]:
    """Count the instructions of each function: (name, path of the file, instructions).

    Decodes the stream to its end. Name and path are "" if unknown. A function may occur repeatedly.
    """
    if not stream.needs_extraction:
        names, *others = map(symbols.names, (stream.tid, *stream.space_pids[1:]))
        yield from stream.native_decoder().functions(names, others)
        return
    import numpy as np

    for batch in stream.instructions():
        tids = batch.extra_columns["tid"]
        for tid in np.unique(tids).tolist():
            is_tid = tids == tid
            indices, _ = symbols.lookup_many(tid, batch.time[is_tid], batch.ip[is_tid])
            counts = np.bincount(indices)
            for index in counts.nonzero()[0].tolist():
                yield *symbols.table[index], int(counts[index])
