"""Names of addresses in the processes of those that ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.trace import Stream, Trace


def lookup(
    trace: Trace,
    stream: Stream,
    more: Mapping[str, NDArray[Any]],
    times: NDArray[Any],
    addresses: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """As `Symbols.lookup_many`, each row in the process of the thread that `more` says, where it
    has a column `tid`.
    """
    import numpy as np

    if "tid" not in more:
        return trace.symbols.lookup_many(stream.tid, times, addresses)
    numbers, offsets = np.zeros(len(addresses), np.uint32), addresses.copy()
    for tid in np.unique(more["tid"]).tolist():
        own = more["tid"] == tid
        numbers[own], offsets[own] = trace.symbols.lookup_many(tid, times[own], addresses[own])
    return numbers, offsets
