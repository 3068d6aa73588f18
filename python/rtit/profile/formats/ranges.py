"""Profiles of executed ranges and taken branches: of BOLT, AutoFDO and LLVM.

BOLT's pre-aggregated profile (llvm-project, bolt/docs/profiles.md), for `perf2bolt --pa`: a line
`B from to count mispredictions` for each edge, `F start end count` for each range that ran without
a taken branch. Addresses are hexadecimal and those of the file; in a position-independent file they
count from its load address. X:0 is code outside the file. BOLT does not read the stubs of procedure
linkage tables: their ranges are left out.

AutoFDO: `create_llvm_prof --profiler=text` (autofdo, sample_reader.cc). LLVM: `llvm-profgen
--unsymbolized-profile ... --use-offset=0` (llvm-project, llvm/tools/llvm-profgen). Both list
executed ranges (first and last address) and taken branches, each list after its length. AutoFDO has
a list of single addresses between, which is empty here. Addresses are hexadecimal and those of the
ELF file. Ranges do not overlap: each instruction has the count of its range. LLVM takes address 1
for code outside the file, from which functions are called too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rtit.image.inlined_calls import FunctionIndex
from rtit.profile.tables import ExecutedRanges, load_address, taken_branches

if TYPE_CHECKING:
    from rtit.profile.tables import Binary


def bolt_profile(binary: Binary) -> Iterator[str]:
    """Return the lines of a binary's profile."""
    base = np.uint64(load_address(binary))

    def addresses_of_offsets(offsets: np.typing.NDArray[np.uint64]) -> list[int]:
        addresses: list[int] = (binary.symbols.addresses(offsets) - base).tolist()
        return addresses

    internal = taken_branches(binary.edges_within_binary)
    outgoing = taken_branches(binary.edges_to_other_binaries)
    incoming = taken_branches(binary.edges_from_other_binaries)
    columns = (
        addresses_of_offsets(internal.source),
        addresses_of_offsets(internal.target),
        internal.count.tolist(),
    )
    for source, target, count in zip(*columns, strict=True):
        yield f"B {source:x} {target:x} {count} 0"
    for source, count in _sum_by_address(
        addresses_of_offsets(outgoing.source), outgoing.count.tolist()
    ):
        yield f"B {source:x} X:0 {count} 0"
    for target, count in _sum_by_address(
        addresses_of_offsets(incoming.target), incoming.count.tolist()
    ):
        yield f"B X:0 {target:x} {count} 0"
    executed = ExecutedRanges(binary)
    offsets = binary.offset
    kept = ~_is_linkage_stub(binary, offsets[executed.first])
    ranges = (
        addresses_of_offsets(offsets[executed.first[kept]]),
        addresses_of_offsets(offsets[executed.last[kept]]),
        executed.count[kept].tolist(),
    )
    for first, last, count in zip(*ranges, strict=True):
        yield f"F {first:x} {last:x} {count}"
    # from one range to the next: BOLT takes these as fall-throughs of conditional branches
    rows, counts = executed.ranges_that_fall_through()
    kept = ~_is_linkage_stub(binary, offsets[rows])
    rows, counts = rows[kept], counts[kept]
    for first, last, count in zip(
        addresses_of_offsets(offsets[rows]),
        addresses_of_offsets(offsets[rows + 1]),
        counts.tolist(),
        strict=True,
    ):
        yield f"F {first:x} {last:x} {count}"


def _is_linkage_stub(
    binary: Binary, offsets: np.typing.NDArray[np.uint64]
) -> np.typing.NDArray[np.bool_]:
    owners = FunctionIndex(binary.symbols).find_functions(offsets)
    bindings = np.frombuffer(binary.symbols.bindings + b" ", np.uint8)
    # the last stands for no function
    return np.asarray(bindings[owners] == ord("p"))


def _sum_by_address(addresses: list[int], counts: list[int]) -> Iterator[tuple[int, int]]:
    totals: Counter[int] = Counter()
    for address, count in zip(addresses, counts, strict=True):
        totals[address] += count
    yield from sorted(totals.items())


_OUTSIDE_ADDRESS = 1


def autofdo_profile(binary: Binary) -> Iterator[str]:
    """Return the lines of a binary's AutoFDO profile."""
    yield from _format_executed_ranges(binary)
    yield "0"
    yield from _branch_lines(_count_taken_branches(binary))


def llvm_profile(binary: Binary) -> Iterator[str]:
    """Return the lines of a binary's LLVM profile."""
    yield from _format_executed_ranges(binary)
    branches = _count_taken_branches(binary)
    incoming = taken_branches(binary.edges_from_other_binaries)
    for target, count in zip(
        binary.symbols.addresses(incoming.target).tolist(), incoming.count.tolist(), strict=True
    ):
        branches[_OUTSIDE_ADDRESS, target] = branches.get((_OUTSIDE_ADDRESS, target), 0) + count
    yield from _branch_lines(branches)


def _format_executed_ranges(binary: Binary) -> Iterator[str]:
    executed = ExecutedRanges(binary)
    addresses = binary.symbols.addresses(binary.offset)
    columns = addresses[executed.first], addresses[executed.last], executed.count
    yield str(len(executed.count))
    for first, last, count in zip(*(column.tolist() for column in columns), strict=True):
        yield f"{first:x}-{last:x}:{count}"


def _count_taken_branches(binary: Binary) -> dict[tuple[int, int], int]:
    """Return how often each branch was taken, by source and target."""
    edges = taken_branches(binary.edges_within_binary)
    sources = binary.symbols.addresses(edges.source).tolist()
    targets = binary.symbols.addresses(edges.target).tolist()
    # one address can have a call and a jump with equal targets, if its code changed
    totals: dict[tuple[int, int], int] = {}
    for source, target, count in zip(sources, targets, edges.count.tolist(), strict=True):
        totals[source, target] = totals.get((source, target), 0) + count
    return totals


def _branch_lines(branches: dict[tuple[int, int], int]) -> Iterator[str]:
    yield str(len(branches))
    for (source, target), count in branches.items():
        yield f"{source:x}->{target:x}:{count}"
