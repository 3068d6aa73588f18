"""Limits on the size of a recording: a snapshot of the last bytes, or a maximum file size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtit.capture.options import PtOptions
from rtit.capture.store.sizes import format_size
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.capture.store.packet_store import PacketStore
    from rtit.perfdata import Writer

_MAX_PSB_PERIOD = 256
_MIN_FILE_SIZE = 1 << 14
_MAX_RING_SIZE = 1 << 32


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Limits in bytes. `snapshot`: keep the last bytes of each thread; `max_size`: stop when the
    file reaches this size.
    """

    snapshot: int | None = None
    max_size: int | None = None

    def check(self, options: PtOptions) -> None:
        """Raise UsageError for limits that leave nothing to decode, and for both together."""
        if self.snapshot is not None and self.max_size is not None:
            raise UsageError("--snapshot and --max-size exclude each other: a snapshot has a size")
        if self.max_size is not None and self.max_size < _MIN_FILE_SIZE:
            raise UsageError(
                f"--max-size {format_size(self.max_size)} is less than a recording without trace "
                f"takes: {format_size(_MIN_FILE_SIZE)} at least"
            )
        if self.snapshot is None:
            return
        period = 1 << (options.psb_period + 11)
        if self.snapshot < period + _MAX_PSB_PERIOD:
            raise UsageError(
                f"--snapshot {format_size(self.snapshot)} may hold no PSB to begin to decode at: "
                f"one comes every {format_size(period)}, so take {format_size(2 * period)} or "
                "a smaller psb_period"
            )
        if self.snapshot > _MAX_RING_SIZE:
            raise UsageError(f"--snapshot keeps {format_size(_MAX_RING_SIZE)} a thread at most")

    def make_store(self, writer: Writer) -> PacketStore:
        """Return the packet store for these limits."""
        # Imported here: counting needs no perf.data writer.
        from rtit.capture.store.packet_store import FileStore, SnapshotStore

        if self.snapshot is not None:
            return SnapshotStore(writer, self.snapshot)
        return FileStore(writer, self.max_size)
