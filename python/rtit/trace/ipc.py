"""Instructions a core cycle, where CYCs tell how many cycles there were.

A CYC counts the cycles since the one before it (section 33.4.2.14): what began between two of them
ran in these cycles, as far as the packets can tell. A stretch here is the rows that have one number
of `cycles`; its cycles are those up to the next row that has more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.trace.rows import Rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit.trace.batch import Batch
    from rtit.trace.timing import Clocked

B = TypeVar("B", bound="Batch")
COLUMN = "ipc"

_MOST_WAITING = 16
"""Batches that wait for the end of their last stretch. If it is farther away, it is not known."""


def with_ipc(found: Iterator[Clocked[B]]) -> Iterator[B]:
    """Batches of instructions, or of blocks of them, with the column `ipc` (see `batch.MORE`)."""
    open_ = _Open()
    waiting: deque[tuple[B, NDArray[np.float64]]] = deque()
    for batch, span in found:
        waiting.append((batch, open_.take(batch, span)))
        while len(waiting) > min(len(open_.pieces), _MOST_WAITING):
            if len(waiting) == len(open_.pieces):
                del open_.pieces[0]
            yield _with(*waiting.popleft())
    for each in waiting:
        yield _with(*each)


def _with(batch: B, ipc: NDArray[np.float64]) -> B:
    return batch.with_columns(**{COLUMN: ipc})


class _Open:
    """The stretch that goes on. `pieces`: where its rows are in the columns of the last batches,
    those that nobody has taken yet, one for each batch.
    """

    def __init__(self) -> None:
        self.pieces: list[NDArray[np.float64]] = []
        self._cycles = self._span = -1
        self._instructions = 0

    def take(self, batch: Batch, span: NDArray[np.uint64]) -> NDArray[np.float64]:
        """The column of a batch, filled as far as it is known; the rest when it is."""
        import numpy as np

        ipc = np.full(len(batch), np.nan)
        if not len(batch):
            self.pieces += [ipc] if self.pieces else []
            return ipc
        cycles = batch.cycles
        changes = (cycles[1:] != cycles[:-1]) | (span[1:] != span[:-1])
        starts = np.append(0, np.flatnonzero(changes) + 1)
        counts = np.add.reduceat(_instructions(batch), starts)
        cycles, span = cycles[starts], span[starts]
        goes_on = (self._cycles, self._span) == (int(cycles[0]), int(span[0]))
        if goes_on:
            counts[0] += self._instructions
            self.pieces.append(ipc[: starts[1] if len(starts) > 1 else len(ipc)])
        else:
            self._close(self._instructions, self._cycles, int(cycles[0]), self._span == span[0])
            self.pieces = []
        if len(starts) > 1:
            told = (span[1:] == span[:-1]) & (cycles[1:] > cycles[:-1]) & (cycles[:-1] > 0)
            passed = np.where(told, cycles[1:] - cycles[:-1], 1)
            ipcs = np.where(told, counts[:-1] / passed, np.nan)
            ipc[: starts[-1]] = np.repeat(ipcs, np.diff(starts))
            for piece in self.pieces:
                piece[:] = ipcs[0]
            self.pieces = []
        if not self.pieces:
            self.pieces = [ipc[starts[-1] :]]
        self._cycles, self._span = int(cycles[-1]), int(span[-1])
        self._instructions = int(counts[-1])
        return ipc

    def _close(self, instructions: int, cycles: int, until: int, counted: Any) -> None:
        if counted and until > cycles > 0:
            for piece in self.pieces:
                piece[:] = instructions / (until - cycles)


def _instructions(batch: Batch) -> NDArray[np.uint64]:
    import numpy as np

    if isinstance(batch, Rows):
        return batch.instructions.astype(np.uint64)
    return np.ones(len(batch), np.uint64)
