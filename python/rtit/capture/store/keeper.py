"""What both back ends' recorders do alike: count, keep packets, and close the file."""

from __future__ import annotations

from rtit.capture.recording import Totals
from rtit.capture.store.build_ids import BuildIds
from rtit.capture.store.extent import Extent
from rtit.perfdata import Writer


class Keeper:
    """Base of the recorders: packets go to the store that `extent` asks for, and are counted."""

    def __init__(self, writer: Writer, extent: Extent | None = None) -> None:
        self.totals = Totals()
        self._writer = writer
        self._store = (extent or Extent()).store(writer)
        self._build_ids = BuildIds()

    @property
    def facts(self) -> dict[str, str]:
        """What the file says of how much of the trace it has."""
        return self._store.facts()

    @property
    def full(self) -> bool:
        """The file has reached its size: nothing more is written."""
        return self._store.full

    def close(self) -> None:
        """End every thread that is still there, and the file. Again is harmless."""
        raise NotImplementedError

    def _put(self, tid: int, pid: int, data: bytes | bytearray | memoryview, tsc: int) -> None:
        self._store.put(tid, pid, data, tsc)
        self.totals.pt_bytes += len(data)

    def _dump(self, tsc: int) -> int:
        """Write a snapshot, of a recording of snapshots; returns how many bytes of PT it has."""
        size = self._store.dump(tsc)
        self._writer.flush()
        return size

    def _close(self, tsc: int) -> None:
        self._store.dump(tsc)
        self._writer.close(build_ids=self._build_ids.known(), facts=self._store.facts())
