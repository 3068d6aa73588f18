"""BOLT's pre-aggregated profile (llvm-project, bolt/docs/profiles.md), for `perf2bolt --pa`.

A line `B from to count mispredictions` for each edge, `F start end count` for each range that ran
without a taken branch. Addresses are hexadecimal and those of the file; in a position-independent
file they count from its load address. X:0 is code outside the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rtit.profile.tables import ExecutedRanges, load_address, taken_branches

if TYPE_CHECKING:
    from rtit.profile.tables import Binary


def bolt_profile(binary: Binary) -> Iterator[str]:
    """Return the lines of a binary's profile."""
    base = np.uint64(load_address(binary))

    def addresses_at(offsets: np.typing.NDArray[np.uint64]) -> list[int]:
        addresses: list[int] = (binary.symbols.addresses(offsets) - base).tolist()
        return addresses

    internal = taken_branches(binary.internal_edges)
    outgoing = taken_branches(binary.outgoing_edges)
    incoming = taken_branches(binary.incoming_edges)
    columns = addresses_at(internal.source), addresses_at(internal.target), internal.count.tolist()
    for source, target, count in zip(*columns, strict=True):
        yield f"B {source:x} {target:x} {count} 0"
    for source, count in _sum_by_address(addresses_at(outgoing.source), outgoing.count.tolist()):
        yield f"B {source:x} X:0 {count} 0"
    for target, count in _sum_by_address(addresses_at(incoming.target), incoming.count.tolist()):
        yield f"B X:0 {target:x} {count} 0"
    executed = ExecutedRanges(binary)
    offsets = binary.offset
    ranges = (
        addresses_at(offsets[executed.first]),
        addresses_at(offsets[executed.last]),
        executed.count.tolist(),
    )
    for first, last, count in zip(*ranges, strict=True):
        yield f"F {first:x} {last:x} {count}"
    # from one range to the next: BOLT takes these as fall-throughs of conditional branches
    rows, counts = executed.fall_throughs()
    for first, last, count in zip(
        addresses_at(offsets[rows]), addresses_at(offsets[rows + 1]), counts.tolist(), strict=True
    ):
        yield f"F {first:x} {last:x} {count}"


def _sum_by_address(addresses: list[int], counts: list[int]) -> Iterator[tuple[int, int]]:
    sums: Counter[int] = Counter()
    for address, count in zip(addresses, counts, strict=True):
        sums[address] += count
    yield from sorted(sums.items())
