"""What decoding gives: rows of columns, and the account of the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rows:
    """Runs of instructions that followed each other in memory, as columns of one length.

    `start`: IP of the first instruction; `instructions`: how many; `last`: IP of the last; `end`:
    why the run ended (`_core.Flow.ENDS` names it); `time`: TSC estimate at its start, a lower
    bound; `offset`: place in the stream of the packet that ended it.
    """

    start: NDArray[np.uint64]
    instructions: NDArray[np.uint32]
    last: NDArray[np.uint64]
    end: NDArray[np.uint8]
    time: NDArray[np.uint64]
    offset: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Span:
    """What is known of bytes `start`..`end` of a stream: `kind` is exact, resumed or lost; `error`
    says why.
    """

    start: int
    end: int
    kind: str
    error: str

    def __str__(self) -> str:
        text = f"bytes {self.start:#x} to {self.end:#x} {self.kind}"
        return f"{text}: {self.error}" if self.error else text
