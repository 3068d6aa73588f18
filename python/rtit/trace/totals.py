"""What ran and how often, whatever the order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class RunTotals:
    """Runs of instructions that follow each other in memory, as columns of one length, sorted by
    `start` (IP of the first) and `instructions` (how many); `count`: how often they ran.

    Runs overlap: an instruction ran as often as all runs that hold it.
    """

    start: NDArray[np.uint64]
    instructions: NDArray[np.uint32]
    count: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class EdgeTotals:
    """Transfers, as columns of one length, sorted by `source` (IP of the instruction), `target`
    (where it went) and `kind`; `count`: how often.

    `kind`: an `End`; CUT is a conditional branch that was not taken. A transfer counts where code
    or trace tell its target, also if tracing ended with it, or if an event struck before the first
    instruction there.
    """

    source: NDArray[np.uint64]
    target: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    count: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """All runs and edges of a stream."""

    runs: RunTotals
    edges: EdgeTotals
