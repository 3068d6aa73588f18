"""How much of a program's trace is kept: all, all up to a size, or the last of each thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtit.capture.options import PtOptions
from rtit.capture.store.sizes import format_size
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.capture.store.ring import Store
    from rtit.perfdata import Writer

_PSB_LARGEST = 256
_SMALLEST_FILE = 1 << 14
_LARGEST_RING = 1 << 32


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes in bytes. `snapshot`: keep the last of each thread; `max_size`: stop when the file is
    as large.
    """

    snapshot: int | None = None
    max_size: int | None = None

    def check(self, options: PtOptions) -> None:
        """Raise UsageError for sizes that leave nothing to decode, and for both at once."""
        if self.snapshot is not None and self.max_size is not None:
            raise UsageError("--snapshot and --max-size exclude each other: a snapshot has a size")
        if self.max_size is not None and self.max_size < _SMALLEST_FILE:
            raise UsageError(
                f"--max-size {format_size(self.max_size)} is less than a recording without trace "
                f"takes: {format_size(_SMALLEST_FILE)} at least"
            )
        if self.snapshot is None:
            return
        period = 1 << (options.psb_period + 11)
        if self.snapshot < period + _PSB_LARGEST:
            raise UsageError(
                f"--snapshot {format_size(self.snapshot)} may hold no PSB to begin to decode at: "
                f"one comes every {format_size(period)}, so take {format_size(2 * period)} or "
                "a smaller psb_period"
            )
        if self.snapshot > _LARGEST_RING:
            raise UsageError(f"--snapshot keeps {format_size(_LARGEST_RING)} a thread at most")

    def store(self, writer: Writer) -> Store:
        """What takes the packets."""
        # who only counts needs no writer
        from rtit.capture.store.ring import Snapshot, Whole

        if self.snapshot is not None:
            return Snapshot(writer, self.snapshot)
        return Whole(writer, self.max_size)
