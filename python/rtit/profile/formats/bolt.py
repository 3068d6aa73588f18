"""BOLT's pre-aggregated profile (llvm-project, bolt/docs/profiles.md), for `perf2bolt --pa`.

A line `B from to count mispredictions` for each edge, `F start end count` for each stretch that ran
from start to end without a taken branch. Addresses are hexadecimal and those of the file, of a
position-independent one counted from where it is loaded; X:0 is elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rtit.profile.tables import Stretches, load_address, taken

if TYPE_CHECKING:
    from rtit.profile.tables import Binary


def bolt(binary: Binary) -> Iterator[str]:
    """The lines of one binary."""
    base = np.uint64(load_address(binary))

    def at(offsets: np.typing.NDArray[np.uint64]) -> list[int]:
        addresses: list[int] = (binary.symbols.addresses(offsets) - base).tolist()
        return addresses

    inside, leaving, entering = map(taken, (binary.within, binary.leaving, binary.entering))
    columns = at(inside.source), at(inside.target), inside.count.tolist()
    for source, target, count in zip(*columns, strict=True):
        yield f"B {source:x} {target:x} {count} 0"
    for source, count in _added(at(leaving.source), leaving.count.tolist()):
        yield f"B {source:x} X:0 {count} 0"
    for target, count in _added(at(entering.target), entering.count.tolist()):
        yield f"B X:0 {target:x} {count} 0"
    stretches = Stretches(binary)
    offsets = binary.offset
    ranges = at(offsets[stretches.first]), at(offsets[stretches.last]), stretches.count.tolist()
    for first, last, count in zip(*ranges, strict=True):
        yield f"F {first:x} {last:x} {count}"
    # From one stretch to the next: what a fall through a conditional branch is to BOLT.
    fell, counts = stretches.falls()
    for first, last, count in zip(
        at(offsets[fell]), at(offsets[fell + 1]), counts.tolist(), strict=True
    ):
        yield f"F {first:x} {last:x} {count}"


def _added(addresses: list[int], counts: list[int]) -> Iterator[tuple[int, int]]:
    sums: Counter[int] = Counter()
    for address, count in zip(addresses, counts, strict=True):
        sums[address] += count
    yield from sorted(sums.items())
