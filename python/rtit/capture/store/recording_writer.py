"""Create the perf.data file of a recording; the base of all recorders.

A recorder counts, stores packets, writes sideband records and closes the file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rtit.capture.events import EventFlag, MmapEvent, parse_mmap_with_contents
from rtit.capture.request import RecordPlan, SizeLimits
from rtit.capture.session import RecordingTotals
from rtit.capture.store.deleted_files import DeletedFiles, MappingLocation, build_id_in
from rtit.capture.store.packet_store import make_packet_store
from rtit.errors import RecordError
from rtit.image import perf_maps
from rtit.perfdata import (
    ExitStatus,
    SwitchRecords,
    TimeConversion,
    Writer,
    needs_rotation,
    rotate_recording,
)
from rtit.perfdata.filters import format_address_filters
from rtit.registers import FULL


@contextlib.contextmanager
def replace_output_file(path: Path) -> Iterator[None]:
    """Rename an existing file to `path.old`; undo this if the body raises.

    An older `path.old` is removed after success only. Raises RecordError if renaming fails.
    """
    had, old, oldest = needs_rotation(path), Path(f"{path}.old"), Path(f"{path}.old.{os.getpid()}")
    had_old = had and needs_rotation(old)
    try:
        if had_old:
            old.rename(oldest)
    except OSError as error:
        raise RecordError(f"cannot rename {old}: {error.strerror}") from error
    try:
        rotate_recording(path)
        yield
    except BaseException:
        if had and needs_rotation(old):
            old.replace(path)
        elif not had and path.is_file():
            path.unlink()
        if had_old:
            oldest.rename(old)
        raise
    if had_old:
        oldest.unlink()


def open_writer(
    plan: RecordPlan, *, time: str, switches: SwitchRecords = SwitchRecords.NONE, **facts: str
) -> Writer:
    """Create the perf.data file of `plan`; `time` and `facts` are added to its header."""
    model = plan.time
    return Writer(
        plan.path,
        config=plan.options.attr_config,
        cpuid=FULL.cpuid_text,
        cmdline=plan.command,
        time=TimeConversion(model.time_shift, model.time_mult, model.time_zero),
        tsc_ctc=(model.tsc_numerator, model.tsc_denominator),
        max_nonturbo_ratio=model.max_non_turbo_ratio,
        filter=format_address_filters(plan.filters),
        snapshot=plan.size_limits.snapshot is not None,
        switches=switches,
        user=plan.options.user,
        kernel=plan.options.kernel,
        facts={"profile": FULL.name, "time": time, "event": str(plan.options), **facts},
    )


class RecordingWriter:
    """Base of the recorders: counts packets and puts them into the store for `size_limits`."""

    def __init__(self, writer: Writer, size_limits: SizeLimits | None = None) -> None:
        self.totals = RecordingTotals()
        self._writer = writer
        self._store = make_packet_store(writer, size_limits or SizeLimits())
        self._deleted_files = DeletedFiles()
        self._first_pid = 0
        self._pids: dict[int, None] = {}
        self._deferred_exits: list[tuple[int, int, int, ExitStatus]] = []
        self._keeps_all_packets = size_limits is None or size_limits.snapshot is None
        self.ending: ExitStatus | None = None
        """How the first process ended, if that is known."""

    @property
    def facts(self) -> dict[str, str]:
        """Facts in the file's header that say which part of the trace the file has."""
        return self._store.facts()

    @property
    def is_full(self) -> bool:
        """Whether the file has reached its maximum size and discards everything that follows."""
        return self._store.is_full

    @property
    def pt_bytes(self) -> int:
        """Bytes of PT in the file."""
        return self._writer.pt_bytes

    def close(self) -> None:
        """End all remaining threads and close the file. May be called again."""
        raise NotImplementedError

    def _note_process(self, pid: int) -> None:
        """Note that a thread of process `pid` has begun: the first one is the program's."""
        self._first_pid = self._first_pid or pid
        self._pids[pid] = None

    def _write_mapping(self, location: MappingLocation, blob: bytes, flags: int) -> MmapEvent:
        """Write an executable mapping; `blob` and `flags` are those of its event."""
        mapping, head = parse_mmap_with_contents(blob)
        build_id = None
        if flags & EventFlag.MMAP_WITH_CONTENTS:
            build_id = build_id_in(head)
            self._deleted_files.register_expected_contents(location, mapping, build_id)
        else:
            self._deleted_files.add_from_file(location, mapping)
        pid, tid, time, address, size = location
        self._writer.mmap2(pid, tid, time, address, size, *mapping, build_id)
        return mapping

    def _write_code(self, location: MappingLocation, code: bytes, flags: int) -> None:
        """Write new code; `flags` are those of its event."""
        if flags & EventFlag.CODE_OF_MAPPING and self._deleted_files.add_contents(
            location.pid, location.address, code
        ):
            return
        self._writer.text_poke(location.pid, location.tid, location.time, location.address, code)

    def _write_exit(
        self,
        pid: int,
        tid: int,
        time: int,
        ending: ExitStatus | None,
        instructions: int | None = None,
    ) -> None:
        """Write the end of a thread at `time` ns, and the number of its traced instructions, if it
        is known.
        """
        if ending is not None and pid == self._first_pid:
            if self.ending is None or ending.took_signal:
                self.ending = ending
            if self.is_full:
                self._deferred_exits.append((pid, tid, time, ending))
        if not self.is_full:
            traced = instructions if self._keeps_all_packets else None
            self._writer.exit(pid, pid, tid, tid, time, ending, traced)

    def _store_packets(
        self, tid: int, pid: int, data: bytes | bytearray | memoryview, tsc: int
    ) -> None:
        self._store.add_packets(tid, pid, data, tsc)
        self.totals.pt_bytes += len(data)

    def _write_snapshot(self, tsc: int) -> int:
        """Write a snapshot, if the recording takes snapshots; return its bytes of PT."""
        size = self._store.write_snapshot(tsc)
        self._writer.flush()
        return size

    def _close(self, tsc: int, more_facts: Mapping[str, str] | None = None) -> None:
        self._store.write_snapshot(tsc)
        # A file that has reached its size still records how the program ended.
        for pid, tid, time, ending in self._deferred_exits:
            self._writer.exit(pid, pid, tid, tid, time, ending)
        self._deferred_exits.clear()
        self._write_lost_code()
        build_ids = self._deleted_files.build_ids.by_path()
        facts = {**self._store.facts(), **(more_facts or {})}
        stamps = perf_maps.stamp_perf_maps(self._pids, self._deleted_files.start_time)
        if stamps:
            facts[perf_maps.FACT] = perf_maps.format_stamps(stamps)
        self._writer.close(build_ids=build_ids, facts=facts)

    def _write_lost_code(self) -> None:
        """Write the code of deleted and changed files into the recording."""
        deleted_files = self._deleted_files
        try:
            for location, code in deleted_files.code_of_changed_files(self._store.free_bytes):
                self._writer.text_poke(
                    location.pid, location.tid, location.time, location.address, code
                )
            for path in dict.fromkeys(deleted_files.lost_paths):
                self.totals.warnings.append(
                    f"{path} was deleted or changed during the recording, so its code is not known"
                )
        finally:
            deleted_files.close()
