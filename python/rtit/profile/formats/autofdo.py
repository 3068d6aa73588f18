"""The text profiles of AutoFDO (`create_llvm_prof --profiler=text`) and of LLVM (`llvm-profgen
--unsymbolized-profile ... --use-offset=0`).

Both count ranges of instructions, first and last address, and taken branches, each part behind its
number of lines; AutoFDO has a part of single addresses between, which is empty here. Addresses are
hexadecimal and those of the ELF file. Ranges do not overlap: the count of each instruction is the
count of its range. To LLVM 1 is an address elsewhere, from where functions are called as well.
(autofdo, sample_reader.cc; llvm-project, llvm/tools/llvm-profgen.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rtit.profile.tables import Stretches, taken

if TYPE_CHECKING:
    from rtit.profile.tables import Binary


_ELSEWHERE = 1


def autofdo(binary: Binary) -> Iterator[str]:
    """The lines of one binary."""
    yield from _ranges(binary)
    yield "0"
    yield from _lines(_branches(binary))


def llvm(binary: Binary) -> Iterator[str]:
    """The lines of one binary."""
    yield from _ranges(binary)
    branches = _branches(binary)
    entering = taken(binary.entering)
    for target, count in zip(
        binary.symbols.addresses(entering.target).tolist(), entering.count.tolist(), strict=True
    ):
        branches[_ELSEWHERE, target] = branches.get((_ELSEWHERE, target), 0) + count
    yield from _lines(branches)


def _ranges(binary: Binary) -> Iterator[str]:
    stretches = Stretches(binary)
    addresses = binary.symbols.addresses(binary.offset)
    columns = addresses[stretches.first], addresses[stretches.last], stretches.count
    yield str(len(stretches.count))
    for first, last, count in zip(*(column.tolist() for column in columns), strict=True):
        yield f"{first:x}-{last:x}:{count}"


def _branches(binary: Binary) -> dict[tuple[int, int], int]:
    """How often each was taken, by where from and where to."""
    edges = taken(binary.within)
    sources = binary.symbols.addresses(edges.source).tolist()
    targets = binary.symbols.addresses(edges.target).tolist()
    # A call and a jump may lead the same way from one place, if the code there was two things.
    sums: dict[tuple[int, int], int] = {}
    for source, target, count in zip(sources, targets, edges.count.tolist(), strict=True):
        sums[source, target] = sums.get((source, target), 0) + count
    return sums


def _lines(branches: dict[tuple[int, int], int]) -> Iterator[str]:
    yield str(len(branches))
    for (source, target), count in branches.items():
        yield f"{source:x}->{target:x}:{count}"
