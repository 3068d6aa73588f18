"""The tables of a profile: exact counts of instructions and edges by binary.

A `Profile` has a `Binary` for each file with code that ran, and the `ProfileLosses`: what ran and
is in no binary, or could not be decoded. `ExecutedRanges` joins instructions that always ran
together, as the formats of compilers want them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.errors import UsageError
from rtit.profile.losses import ProfileLosses
from rtit.trace import End
from rtit.x86 import InstructionClass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit._core import Space
    from rtit.image import FileSymbols
    from rtit.trace import End

_ROWS_AT_ONCE = 1 << 16
"""Rows that are converted to Python values at a time."""


def iterate_rows(columns: Sequence[Any], order: NDArray[np.intp] | None = None) -> Iterator[Any]:
    """Iterate over the rows of columns of equal length as tuples; with `order`, over these rows."""
    for at in range(0, len(columns[0] if order is None else order), _ROWS_AT_ONCE):
        rows = slice(at, at + _ROWS_AT_ONCE) if order is None else order[at : at + _ROWS_AT_ONCE]
        yield from zip(*(column[rows].tolist() for column in columns), strict=True)


def find_sorted(sorted_numbers: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.intp]:
    """Return the first index of each of `numbers` in sorted numbers; -1 if it is missing."""
    at = np.searchsorted(sorted_numbers, numbers)
    found = at < len(sorted_numbers)
    found[found] = sorted_numbers[at[found]] == numbers[found]
    return np.where(found, at, -1)


NO_BINARY = -1
"""Stands for a binary where there is no file: JIT code, the vDSO, the kernel, unmapped code."""


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Transfers of control as columns of equal length, sorted by all but the last.

    Source and target are the number of a binary and an offset in its file; without a file,
    NO_BINARY and an address. `kind` is an `End` (CUT: a conditional branch that was not taken).
    """

    source_binary: NDArray[np.int32]
    source: NDArray[np.uint64]
    target_binary: NDArray[np.int32]
    target: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    count: NDArray[np.uint64]

    def select_rows(self, mask: NDArray[np.bool_]) -> Edges:
        """Return the edges that the mask selects."""
        if mask.all():
            return self
        return Edges(
            self.source_binary[mask],
            self.source[mask],
            self.target_binary[mask],
            self.target[mask],
            self.kind[mask],
            self.count[mask],
        )


@dataclass(frozen=True, eq=False)
class Binary:
    """A file with code that ran.

    Columns have a row per instruction that ran, sorted by `offset` in the file: `length` in bytes,
    `kind` (`rtit.x86.InstructionClass`), and `count`. `edges` start or end in the binary. `space`
    has its code by file offset: the mapped ranges `code_ranges`, offset and size each.
    """

    number: int
    """Index in `Profile.binaries` before binaries without instructions are dropped."""
    path: str
    build_id: bytes | None
    symbols: FileSymbols
    space: Space
    offset: NDArray[np.uint64]
    length: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    count: NDArray[np.uint64]
    edges: Edges
    code_ranges: Sequence[tuple[int, int]]

    @cached_property
    def name(self) -> str:
        """The name of the file without the folder."""
        return PurePath(self.path).name

    @cached_property
    def executed_instructions(self) -> int:
        """Number of instructions that ran."""
        return int(self.count.sum())

    @cached_property
    def edges_within_binary(self) -> Edges:
        """Edges within the binary."""
        edges = self.edges
        return edges.select_rows(
            (edges.source_binary == self.number) & (edges.target_binary == self.number)
        )

    @cached_property
    def edges_to_other_binaries(self) -> Edges:
        """Edges from the binary to others."""
        return self.edges.select_rows(self.edges.target_binary != self.number)

    @cached_property
    def edges_from_other_binaries(self) -> Edges:
        """Edges from others to the binary."""
        return self.edges.select_rows(self.edges.source_binary != self.number)


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What ran in a recording."""

    binaries: list[Binary]
    main: Binary | None
    """The program; None if no code of its file ran."""
    instructions: int
    """Instructions of all binaries and losses."""
    losses: ProfileLosses
    threads: list[tuple[str, int]]
    """Title and instructions of each stream."""
    transfers: dict[End, int]
    """How often each kind of edge was taken, also in no file and without a counter."""
    unmapped_code: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Instructions in no file, by function and module, as far as these are known."""

    def select_binaries(self, names: list[str]) -> list[Binary]:
        """Return the binaries of these names or paths; "all" means all, no name the program.

        Raises UsageError.
        """
        if not names:
            if self.main is None:
                raise UsageError("nothing ran in any file")
            return [self.main]
        if "all" in names:
            return self.binaries
        found = []
        for name in names:
            matching = [each for each in self.binaries if name in (each.path, each.name)]
            if not matching:
                known = ", ".join(each.name for each in self.binaries) or "none"
                raise UsageError(f"no code ran in a file named {name}; code ran in: {known}")
            found.extend(matching)
        return found


_UNCONDITIONAL_EXITS = [
    InstructionClass.JUMP,
    InstructionClass.INDIRECT_JUMP,
    InstructionClass.RETURN,
    InstructionClass.FAR_TRANSFER,
]
_CALLS = [InstructionClass.CALL, InstructionClass.INDIRECT_CALL]


class ExecutedRanges:
    """Instructions of a binary, joined to ranges that ran as one.

    The instructions of a range belong to one function and are contiguous in memory. Each ran as
    often as the first and continued to the next each time, through calls that returned too. `first`
    and `last` are rows of the binary's columns.
    """

    def __init__(self, binary: Binary) -> None:
        self._binary = binary
        continues = self._next_row_is_adjacent & (
            self.counts_of_continuing[:-1] == binary.count[1:]
        )
        continues &= self.counts_of_continuing[:-1] == binary.count[:-1]
        begins = np.ones(len(binary.offset), bool)
        begins[1:] = ~continues
        self.first = np.flatnonzero(begins)
        self.last = np.append(self.first[1:], len(binary.offset)) - 1
        self.last = self.last[: len(self.first)]
        self.count = binary.count[self.first]

    @cached_property
    def counts_of_continuing(self) -> NDArray[np.uint64]:
        """How often each instruction continued to the next in memory; for a call, how often it
        returned.
        """
        binary = self._binary
        counts = binary.count.copy()
        counts[np.isin(binary.kind, _UNCONDITIONAL_EXITS)] = 0
        conditional = binary.kind == InstructionClass.CONDITIONAL
        edges = binary.edges
        not_taken = (edges.source_binary == binary.number) & (edges.kind == End.CUT)
        sums = _sum_by_key(edges.source[not_taken], edges.count[not_taken], binary.offset)
        counts[conditional] = sums[conditional]
        returns = (edges.target_binary == binary.number) & (edges.kind == End.RETURN)
        return_addresses = binary.offset + binary.length
        sums = _sum_by_key(edges.target[returns], edges.count[returns], return_addresses)
        calls = np.isin(binary.kind, _CALLS)
        counts[calls] = np.minimum(sums, binary.count)[calls]
        return counts

    @cached_property
    def _next_row_is_adjacent(self) -> NDArray[np.bool_]:
        """Whether the next row is the next instruction in memory, of the same function."""
        binary = self._binary
        adjacent = binary.offset[:-1] + binary.length[:-1] == binary.offset[1:]
        starts, _ends, _owners = binary.symbols.owned_range_columns
        owner_row = np.searchsorted(starts, binary.offset, "right")
        return np.asarray(adjacent & (owner_row[1:] == owner_row[:-1]))

    def ranges_that_fall_through(self) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
        """Return the last rows of ranges that continued to the next range, and how often."""
        rows = self.last[:-1]
        count = np.minimum(self.counts_of_continuing[rows], self._binary.count[rows + 1])
        continued = self._next_row_is_adjacent[rows] & (count > 0)
        return rows[continued], count[continued]


def _sum_by_key(
    keys: NDArray[np.uint64], counts: NDArray[np.uint64], numbers: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return for each of `numbers` the sum of the counts of this key."""
    distinct, positions = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(distinct) + 1, np.uint64)
    np.add.at(sums, positions, counts)
    at = np.searchsorted(distinct, numbers)
    found = at < len(distinct)
    found[found] = distinct[at[found]] == numbers[found]
    return np.where(found, sums[np.minimum(at, len(distinct))], np.uint64(0))


NEAR_BRANCHES = (
    End.CONDITIONAL,
    End.JUMP,
    End.CALL,
    End.INDIRECT_JUMP,
    End.INDIRECT_CALL,
    End.RETURN,
)
"""Kinds of edges of near branches that were taken."""
_ET_DYN = 3


def taken_branches(edges: Edges) -> Edges:
    """Return the edges of near branches that were taken."""
    return edges.select_rows(np.isin(edges.kind, NEAR_BRANCHES))


def load_address(binary: Binary) -> int:
    """Return the address of a position-independent file's first segment; 0 for other files."""
    elf = binary.symbols.elf
    if elf.kind != _ET_DYN or not elf.segments:
        return 0
    return min(address for _offset, address, *_ in elf.segments) & ~0xFFF
