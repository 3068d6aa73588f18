"""Columns as Python has numbers, and where in them some are.

What ran, binary by binary: every instruction and every edge with its exact count.

Stretches of a binary that ran as one, and how often the program went on from one to the next.

Addresses and edges as the formats of compilers want them.
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
from rtit.trace import End
from rtit.trace.tables.counts import BEYOND
from rtit.x86 import Class

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit._core import Space
    from rtit.image import FileSymbols
    from rtit.trace import End


_PART = 1 << 16
"""Rows that are made values of Python at once."""


def values(columns: Sequence[Any], order: NDArray[np.intp] | None = None) -> Iterator[Any]:
    """The rows of columns of one length as tuples, or those that `order` has, in that."""
    for at in range(0, len(columns[0] if order is None else order), _PART):
        rows = slice(at, at + _PART) if order is None else order[at : at + _PART]
        yield from zip(*(column[rows].tolist() for column in columns), strict=True)


def places(among: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.intp]:
    """Where in sorted numbers each of `wanted` is first, -1 if it is not there."""
    at = np.searchsorted(among, wanted)
    found = at < len(among)
    found[found] = among[at[found]] == wanted[found]
    return np.where(found, at, -1)


NOWHERE = -1
"""Stands for a binary where no file is: JIT code, the vdso, what is not mapped."""


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Transfers as columns of one length, sorted by all but the last.

    Where from and where to are a number of a binary, or NOWHERE, and an offset in its file, or the
    address; `kind` is an `End` (CUT: a conditional branch not taken), `count` how often.
    """

    source_in: NDArray[np.int32]
    source: NDArray[np.uint64]
    target_in: NDArray[np.int32]
    target: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    count: NDArray[np.uint64]

    def where(self, mask: NDArray[np.bool_]) -> Edges:
        """Those that `mask` chooses."""
        if mask.all():
            return self
        return Edges(
            self.source_in[mask],
            self.source[mask],
            self.target_in[mask],
            self.target[mask],
            self.kind[mask],
            self.count[mask],
        )


@dataclass(frozen=True, eq=False)
class Binary:
    """One ELF file of which code ran. `number` is its place in `Profile.binaries`.

    Columns of one length, a row an instruction, sorted: `offset` in the file, `length` in bytes,
    `kind` a number of `rtit.x86.Class`, `count` how often it ran. `edges` are those that come from
    or lead into it; `space` has its code by file offset.
    """

    number: int
    path: str
    build_id: bytes | None
    symbols: FileSymbols
    space: Space
    offset: NDArray[np.uint64]
    length: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    count: NDArray[np.uint64]
    edges: Edges

    @cached_property
    def name(self) -> str:
        """The file's name without its folder."""
        return PurePath(self.path).name

    @cached_property
    def instructions(self) -> int:
        """How many ran."""
        return int(self.count.sum())

    @cached_property
    def within(self) -> Edges:
        """Edges from the binary to itself."""
        edges = self.edges
        return edges.where((edges.source_in == self.number) & (edges.target_in == self.number))

    @cached_property
    def leaving(self) -> Edges:
        """Edges to elsewhere."""
        return self.edges.where(self.edges.target_in != self.number)

    @cached_property
    def entering(self) -> Edges:
        """Edges from elsewhere."""
        return self.edges.where(self.edges.source_in != self.number)


@dataclass(slots=True)
class Losses:
    """What a profile of binaries does not tell: instructions that ran in the kernel, in no file
    (JIT code, the vdso), or at places of a file that hold other code now; bytes of PT that were not
    decoded exactly, of how many; files whose code is not known; calls that are too deep or in too
    many contexts to be told apart (`profile.calls`), and those between places beyond the first
    `pairs`; runs and transfers that are beyond the places which are counted each by itself;
    `incomplete`: why the recording ends early, if it does; `repeats`: a sentence for each loop
    without packets, of which no packet says how often it went round, `rounds` the instructions of
    further rounds that only the total and the threads have.
    """

    kernel: int = 0
    elsewhere: int = 0
    rewritten: int = 0
    bytes_lost: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    calls: int = 0
    calls_between: int = 0
    pairs: int = 0
    runs: int = 0
    transfers: int = 0
    incomplete: str | None = None
    repeats: list[str] = field(default_factory=list)
    rounds: int = 0

    @property
    def has_gaps(self) -> bool:
        """Whether anything that was recorded is missing from the counts."""
        found = self.bytes_lost or self.problems or self.rewritten or self.incomplete
        return bool(found or self.runs or self.transfers or self.repeats)

    @property
    def outside(self) -> int:
        """Instructions that ran in no file of their process."""
        return self.kernel + self.elsewhere

    def of_calls(self) -> list[str]:
        """A sentence for each reason why calls could not be told apart."""
        found, counted = [], "what ran in them is counted for a caller"
        if self.calls:
            found.append(f"{self.calls:,} calls are too deep or in too many contexts: {counted}")
        if self.calls_between:
            found.append(
                f"{self.calls_between:,} calls are between more than {self.pairs:,} pairs of "
                f"caller and callee: {counted} (--max-edges N keeps half as many pairs)"
            )
        return found

    def of_places(self) -> list[str]:
        """A sentence for each of runs and transfers that are not counted by themselves."""
        found = []
        if self.runs:
            found.append(f"{self.runs:,} runs of instructions are {BEYOND}")
        if self.transfers:
            found.append(f"{self.transfers:,} transfers are {BEYOND}")
        return found

    def lines(self, *, outside: bool = True) -> list[str]:
        """One sentence for each; none if nothing is missing. Without `outside` what ran in no file
        is told otherwise.
        """
        found = []
        if self.kernel and outside:
            found.append(f"{self.kernel:,} instructions ran in the kernel")
        if self.elsewhere and outside:
            found.append(f"{self.elsewhere:,} instructions ran in no file (JIT code, the vdso)")
        if self.rewritten:
            found.append(f"{self.rewritten:,} instructions ran where a file has no such code")
        if self.bytes_lost:
            share = self.bytes_lost / self.bytes
            found.append(
                f"{self.bytes_lost:,} of {self.bytes:,} bytes of PT ({share:.1%}) could not be "
                "decoded exactly"
            )
        found.extend(self.problems)
        found.extend(self.of_calls())
        found.extend(self.of_places())
        found.extend(self.repeats)
        if self.rounds:
            found.append(
                f"{self.rounds:,} instructions of further rounds are in the total of the thread "
                "and in no other count"
            )
        if self.incomplete:
            found.append(f"incomplete: {self.incomplete}")
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """All of a recording. `main` is the first file that was mapped: the program.

    `instructions` counts those of all binaries and those that `losses` has; `threads` how many ran
    in each stream, by its title; `transfers` how often each kind of edge was taken, in no file and
    beyond the places as well; `outside` how many ran in no file, by function and module, as far as
    these are known.
    """

    binaries: list[Binary]
    main: Binary | None
    instructions: int
    losses: Losses
    threads: list[tuple[str, int]]
    transfers: dict[End, int]
    outside: Counter[tuple[str, str]] = field(default_factory=Counter)

    def chosen(self, names: list[str]) -> list[Binary]:
        """The binaries of these names or paths; "all" is every one; of no names the main one.
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
                raise UsageError(f"no code ran in a file {name}; there is: {known}")
            found.extend(matching)
        return found


_LEAVES = [Class.JUMP, Class.INDIRECT_JUMP, Class.RETURN, Class.FAR_TRANSFER]
_CALLS = [Class.CALL, Class.INDIRECT_CALL]


class Stretches:
    """The instructions of a binary, joined.

    A stretch is made of instructions of one function that follow each other in memory, of which
    each ran as often as the first and went on to the next each time, through calls that return, as
    well. `first` and `last` are rows of the binary's columns.
    """

    def __init__(self, binary: Binary) -> None:
        self._binary = binary
        joined = self._followed & (self.onward[:-1] == binary.count[1:])
        joined &= self.onward[:-1] == binary.count[:-1]
        begins = np.ones(len(binary.offset), bool)
        begins[1:] = ~joined
        self.first = np.flatnonzero(begins)
        self.last = np.append(self.first[1:], len(binary.offset)) - 1
        self.last = self.last[: len(self.first)]
        self.count = binary.count[self.first]

    @cached_property
    def onward(self) -> NDArray[np.uint64]:
        """How often each instruction was followed by the one behind it in memory; a call by what it
        returns to.
        """
        binary = self._binary
        onward = binary.count.copy()
        onward[np.isin(binary.kind, _LEAVES)] = 0
        conditional = binary.kind == Class.CONDITIONAL
        edges = binary.edges
        not_taken = (edges.source_in == binary.number) & (edges.kind == End.CUT)
        counted = _sums(edges.source[not_taken], edges.count[not_taken], binary.offset)
        onward[conditional] = counted[conditional]
        returns = (edges.target_in == binary.number) & (edges.kind == End.RETURN)
        behind = binary.offset + binary.length
        counted = _sums(edges.target[returns], edges.count[returns], behind)
        calls = np.isin(binary.kind, _CALLS)
        onward[calls] = np.minimum(counted, binary.count)[calls]
        return onward

    @cached_property
    def _followed(self) -> NDArray[np.bool_]:
        """Whether the next row is the next instruction in memory, of the same function."""
        binary = self._binary
        adjacent = binary.offset[:-1] + binary.length[:-1] == binary.offset[1:]
        starts, _ends, _owners = binary.symbols.columns
        piece = np.searchsorted(starts, binary.offset, "right")
        return np.asarray(adjacent & (piece[1:] == piece[:-1]))

    def falls(self) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
        """The rows behind which another stretch begins that was gone on to, and how often."""
        rows = self.last[:-1]
        count = np.minimum(self.onward[rows], self._binary.count[rows + 1])
        went = self._followed[rows] & (count > 0)
        return rows[went], count[went]


def _sums(
    keys: NDArray[np.uint64], counts: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """For each of `wanted` the sum of the counts of its key."""
    known, places = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(known) + 1, np.uint64)
    np.add.at(sums, places, counts)
    at = np.searchsorted(known, wanted)
    found = at < len(known)
    found[found] = known[at[found]] == wanted[found]
    return np.where(found, sums[np.minimum(at, len(known))], np.uint64(0))


NEAR = (
    End.CONDITIONAL,
    End.JUMP,
    End.CALL,
    End.INDIRECT_JUMP,
    End.INDIRECT_CALL,
    End.RETURN,
)
"""How rows end with a near branch that was taken."""
_DYNAMIC = 3


def taken(edges: Edges) -> Edges:
    """Near branches that were taken."""
    return edges.where(np.isin(edges.kind, NEAR))


def load_address(binary: Binary) -> int:
    """The address of a position-independent file's first segment, 0 of any other."""
    elf = binary.symbols.elf
    if elf.kind != _DYNAMIC or not elf.segments:
        return 0
    return min(address for _offset, address, *_ in elf.segments) & ~0xFFF
