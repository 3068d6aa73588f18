"""Names of addresses in the processes of those that ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rtit.trace.spaces import are_apart

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.trace import Stream, Trace


def lookup(
    trace: Trace,
    stream: Stream,
    more: Mapping[str, NDArray[Any]],
    times: NDArray[Any],
    addresses: NDArray[Any],
    space: str = "space",
) -> tuple[NDArray[Any], NDArray[Any]]:
    """As `Symbols.lookup_many`, each row in the address space that the column called `space` in
    `more` says, or where that is a process's, in that of the thread that the column `tid` says, or
    the process that `pid` does.
    """
    import numpy as np

    count = len(addresses)
    whose = more.get("tid", more.get("pid", np.full(count, stream.tid))).astype(np.int64)
    if space in more:
        pids = np.array(stream.pids, np.int64)[more[space]]
        whose = np.where(are_apart(pids), pids, whose)
    numbers, offsets = np.zeros(count, np.uint32), addresses.copy()
    for tid in np.unique(whose).tolist():
        own = whose == tid
        numbers[own], offsets[own] = trace.symbols.lookup_many(tid, times[own], addresses[own])
    return numbers, offsets
