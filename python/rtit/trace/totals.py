"""What ran and how often, whatever the order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from rtit.trace.batch import Batch, Field
from rtit.trace.categories import End

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


BEYOND = "beyond --max-edges: they are only in the total"
"""What is said of `others`."""


@dataclass(frozen=True, slots=True)
class RunTotal:
    """One run; see `RunTotals`."""

    start: int
    instructions: int
    count: int


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge; see `EdgeTotals`."""

    source: int
    target: int
    kind: End
    count: int


class RunTotals(Batch):
    """Runs of instructions that follow each other in memory, as columns of one length, sorted by
    `start` (IP of the first) and `instructions` (how many); `count`: how often they ran.

    Runs overlap: an instruction ran as often as all runs that hold it. Of more than the
    trace's `places` the first are there; `others`: how often the rest ran.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("start", "u8", None),
        ("instructions", "u4", None),
        ("count", "u8", None),
    )
    WHEN: ClassVar[str | None] = None
    start: NDArray[np.uint64]
    instructions: NDArray[np.uint32]
    count: NDArray[np.uint64]
    others: int = 0

    def __iter__(self) -> Iterator[RunTotal]:
        return map(RunTotal, *self.lists())


class EdgeTotals(Batch):
    """Transfers, as columns of one length, sorted by `source` (IP of the instruction), `target`
    (where it went) and `kind`; `count`: how often.

    `kind`: an `End`; CUT is a conditional branch that was not taken. A transfer counts where code
    or trace tell its target, also if tracing ended with it, or if an event struck before the first
    instruction there. Of more edges than the trace's `places` the first are there; `others`: how
    often the rest was taken, `others_of` by `End`.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("source", "u8", None),
        ("target", "u8", None),
        ("kind", "u1", End),
        ("count", "u8", None),
    )
    WHEN: ClassVar[str | None] = None
    WHERE: ClassVar[tuple[str, str] | None] = ("source", "source")
    source: NDArray[np.uint64]
    target: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    count: NDArray[np.uint64]
    others_of: Mapping[int, int] = MappingProxyType({})

    @property
    def others(self) -> int:
        """All of `others_of`."""
        return sum(self.others_of.values())

    def __iter__(self) -> Iterator[Edge]:
        for source, target, kind, count in zip(*self.lists(), strict=True):
            yield Edge(source, target, End(kind), count)


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """All runs and edges of a stream."""

    runs: RunTotals
    edges: EdgeTotals
