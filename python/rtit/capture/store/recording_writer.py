"""The base of all recorders: counts, stores packets, writes sideband records, closes the file."""

from __future__ import annotations

from rtit.capture.events import Flag, MmapEvent, parse_contents
from rtit.capture.recording import RecordingTotals
from rtit.capture.store.build_ids import build_id_in
from rtit.capture.store.deleted_files import DeletedFiles, MappedAt
from rtit.capture.store.size_limits import SizeLimits
from rtit.perfdata import ExitStatus, Writer


class RecordingWriter:
    """Base of the recorders: counts packets and puts them into the store for `size_limits`."""

    def __init__(self, writer: Writer, size_limits: SizeLimits | None = None) -> None:
        self.totals = RecordingTotals()
        self._writer = writer
        self._store = (size_limits or SizeLimits()).store(writer)
        self._vanished = DeletedFiles()
        self._root = 0
        self._late: list[tuple[int, int, int, ExitStatus]] = []
        self._is_whole = size_limits is None or size_limits.snapshot is None
        self.ending: ExitStatus | None = None
        """How the first process ended, as far as that is known."""

    @property
    def facts(self) -> dict[str, str]:
        """What the file says of how much of the trace it has."""
        return self._store.facts()

    @property
    def full(self) -> bool:
        """The file has reached its size: nothing more is written."""
        return self._store.full

    @property
    def pt_bytes(self) -> int:
        """Bytes of PT in the file."""
        return self._writer.pt_bytes

    def close(self) -> None:
        """End every thread that is still there, and the file. Again is harmless."""
        raise NotImplementedError

    def _begun(self, pid: int) -> None:
        """A thread of process `pid` has begun."""
        self._root = self._root or pid

    def _write_mapping(self, place: MappedAt, blob: bytes, flags: int) -> MmapEvent:
        """A file or memory was mapped to be executed; `blob` and `flags` of its event."""
        mapping, head = parse_contents(blob)
        build_id = None
        if flags & Flag.MMAP_WITH_CONTENTS:
            build_id = build_id_in(head)
            self._vanished.sent(place, mapping, build_id)
        else:
            self._vanished.saw(place, mapping)
        pid, tid, time, address, size = place
        self._writer.mmap2(pid, tid, time, address, size, *mapping, build_id)
        return mapping

    def _write_code(self, place: MappedAt, code: bytes, flags: int) -> None:
        """Code is there from now on; `flags` of its event."""
        if flags & Flag.CODE_OF_MAPPING and self._vanished.take(place.pid, place.address, code):
            return
        self._writer.text_poke(place.pid, place.tid, place.time, place.address, code)

    def _write_exit(
        self,
        pid: int,
        tid: int,
        time: int,
        ending: ExitStatus | None,
        instructions: int | None = None,
    ) -> None:
        """A thread has ended, at `time` ns; how, and how many of its instructions were traced, if
        that is known.
        """
        if ending is not None and pid == self._root:
            if self.ending is None or ending.took_signal:
                self.ending = ending
            if self.full:
                self._late.append((pid, tid, time, ending))
        if not self.full:
            traced = instructions if self._is_whole else None
            self._writer.exit(pid, pid, tid, tid, time, ending, traced)

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
        # A file that has reached its size still records how the program ended.
        for pid, tid, time, ending in self._late:
            self._writer.exit(pid, pid, tid, tid, time, ending)
        self._late.clear()
        self._keep_vanished()
        build_ids = self._vanished.build_ids.known()
        self._writer.close(build_ids=build_ids, facts=self._store.facts())

    def _keep_vanished(self) -> None:
        """The code of files that are gone goes into the recording."""
        vanished = self._vanished
        try:
            for place, code in vanished.pokes(self._store.room):
                self._writer.text_poke(place.pid, place.tid, place.time, place.address, code)
            for path in dict.fromkeys(vanished.lost):
                self.totals.warnings.append(
                    f"{path} was deleted or changed while it ran: its code is not known"
                )
        finally:
            vanished.close()
