"""Where a program was when its trace ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.trace.categories import End, EventKind

if TYPE_CHECKING:
    from rtit.trace import Rows

HOLES = (EventKind.ERROR, EventKind.OVERFLOW, EventKind.RESUMED)
"""Something may be missing there."""
_BORDERS = (EventKind.ENABLED, EventKind.DISABLED, EventKind.ASYNC_DISABLED)


class Behind:
    """What was told behind the last row of all that were added: `next` is the IP there, None if no
    packet told it; `left`: a packet told that the program went on where nothing is traced; `lost`:
    something is missing there; `time`: of the last row, -1 if there is none.
    """

    def __init__(self) -> None:
        self.time = -1
        self.next: int | None = None
        self.left = False
        self.lost = False

    def add(self, rows: Rows) -> None:
        """More rows of the same stream, in order."""
        import numpy as np

        behind = rows.events.row == rows.first + len(rows)
        if len(rows):
            self.time, self.next, self.left = int(rows.time[-1]), None, False
            self.lost = bool(rows.end[-1] == End.LOST)
        self.lost |= bool((behind & np.isin(rows.events.kind, HOLES)).any())
        borders = np.flatnonzero(behind & np.isin(rows.events.kind, _BORDERS))
        if len(borders):
            self.left = bool(rows.events.kind[borders[-1]] == EventKind.DISABLED)
            self.next = None if self.left else int(rows.events.ip[borders[-1]])
