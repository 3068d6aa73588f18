"""Write the messages of the QEMU plugin to perf.data and to the truth file."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from rtit.capture.events import EVENT_RECORD, EventKind, Flag
from rtit.capture.named_file import NamedFile
from rtit.capture.private_files import create_private_file
from rtit.capture.qemu.plugin_protocol import PluginMessage
from rtit.capture.store.deleted_files import MappedAt
from rtit.capture.store.recording_writer import RecordingWriter
from rtit.capture.store.size_limits import SizeLimits
from rtit.errors import InputError, RecordError
from rtit.perfdata import ExitStatus, Fault, Writer
from rtit.unit.time_model import TimeModel

_TRUTH_HEADER = b"rtit-truth\0\0" + struct.pack("<I", 1)
_TRUTH_COMPLETE = struct.pack("<II", 5, 0)
_SMALL_FIELDS = {
    EventKind.THREAD: (0, 1, 2),
    EventKind.COMM: (0,),
    EventKind.MMAP: (2,),
    EventKind.CODE: (2,),
    EventKind.EXIT: (0,),
}
"""Which of ip, target and extra are processes, threads or a status: numbers of 31 bits."""
_MAX_SMALL_FIELD, _MAX_CLOCK = (1 << 31) - 1, 1 << 56
_FILE_EVENTS = frozenset((EventKind.MMAP, EventKind.CODE, EventKind.COMM))


@dataclass(slots=True)
class _ThreadTotals:
    pid: int
    pending: bytearray
    retired: int = 0
    """By the program that runs now."""
    branches: int = 0
    traced: tuple[int, int] | None = None
    """Instructions and branches of it that were traced, where not all are."""
    decodable: int = 0
    """Traced instructions of the programs before."""
    fault: Fault | None = None

    @property
    def all_decodable(self) -> int:
        """Traced instructions so far."""
        return self.decodable + (self.retired if self.traced is None else self.traced[0])


class QemuRecordingSink(RecordingWriter):
    """Writes the messages of the plugin to perf.data and to the truth file."""

    def __init__(
        self,
        writer: Writer,
        truth: Path | str | None,
        size_limits: SizeLimits | None = None,
        model: TimeModel | None = None,
    ) -> None:
        super().__init__(writer, size_limits)
        self.begun = False
        self._model = model or TimeModel()
        self._threads: dict[int, _ThreadTotals] = {}
        self._leaving: set[int] = set()
        self._latest = 0
        self._ended = 0
        self._truth: NamedFile | None = None
        if truth is not None:
            try:
                self._truth = create_private_file(truth)
            except OSError as error:
                raise RecordError(f"{truth}: {error.strerror}") from error
            self._put_truth(_TRUTH_HEADER)

    @property
    def quiet(self) -> bool:
        """Return whether everything that has begun has also ended."""
        return self.begun and not self._threads

    def feed(self, message: bytes | memoryview) -> None:
        """Take one message; nothing of it is kept in place. Raises RecordError for what no plugin
        sends: the program may have forged it.
        """
        if len(message) < EVENT_RECORD.size:
            raise RecordError(f"the plugin sent {len(message)} bytes that are no message")
        try:
            self._feed(message)
        except (InputError, ValueError) as error:
            raise RecordError(f"the plugin sent what is no message: {error}") from error

    def _feed(self, message: bytes | memoryview) -> None:
        kind, flags, _, tid, ip, target, clock, extra = EVENT_RECORD.unpack_from(message)
        small = [tid, *((ip, target, extra)[at] for at in _SMALL_FIELDS.get(kind, ()))]
        if max(small) > _MAX_SMALL_FIELD or clock > _MAX_CLOCK:
            raise ValueError(f"kind {kind}, of {small} at {clock}")
        blob = memoryview(message)[EVENT_RECORD.size :]
        self._latest = max(self._latest, clock)
        now = self._model.tsc(clock)
        writer = self._writer
        if kind == PluginMessage.PACKETS:
            self._packets(tid, blob, bool(flags & Flag.PACKETS_CONTINUE), now, target, extra)
        elif kind == PluginMessage.TRACED:
            if tid in self._threads:
                before = self._threads[tid].traced or (0, 0)
                self._threads[tid].traced = target, extra
                self.totals.traced += target - before[0]
                self.totals.traced_branches += extra - before[1]
        elif kind == PluginMessage.TRUTH:
            self._put_truth(blob)
        elif self.full and kind in _FILE_EVENTS:
            return
        elif kind == EventKind.MMAP:
            self._write_mapping(MappedAt(extra, tid, now, ip, target), bytes(blob), flags)
        elif kind == EventKind.CODE:
            self._write_code(MappedAt(extra, tid, now, ip, len(blob)), bytes(blob), flags)
        elif kind == EventKind.COMM:
            name = os.fsdecode(bytes(blob))
            writer.comm(ip, tid, now, name, by_exec=bool(flags & Flag.COMM_BY_EXEC))
        elif kind == EventKind.THREAD:
            self._begin(tid, ip, target, extra, now)
        elif kind == EventKind.FAULT:
            if tid in self._threads:
                self._threads[tid].fault = Fault(ip, extra >> 32, target)
        elif kind == EventKind.EXIT:
            self._retired(tid, target, extra)
            took = bool(flags & Flag.EXIT_TOOK_SIGNAL)
            thread = self._threads.get(tid)
            fault = thread.fault if took and thread is not None else None
            of_process = bool(flags & Flag.EXIT_WHOLE_PROCESS)
            known = thread.all_decodable if thread is not None else None
            self._end(tid, now, ExitStatus(ip, of_process, took, fault), known)
        elif kind == EventKind.WARNING:
            text = bytes(blob).decode(errors="replace")
            self.totals.warnings.append(f"thread {tid}: {text}")
            if flags & Flag.WARNING_LEAVES:
                self._leaving.add(ip)
            elif flags & Flag.WARNING_STAYS:
                self._leaving.discard(ip)

    def close(self) -> None:
        """End what has not said that it ends, and the files. Again is harmless."""
        lost = sum(thread.pid not in self._leaving for thread in self._threads.values())
        for tid in list(self._threads):
            self._end(tid, self._model.tsc(self._latest))
        if lost:
            self.totals.warnings.append(
                "a thread was killed: its last instructions are missing"
                if lost == 1
                else f"{lost} threads were killed: the last instructions of each are missing"
            )
        if self._truth is not None:
            if not lost:
                self._put_truth(_TRUTH_COMPLETE)
            self._truth.close()
            self._truth = None
        self._close(self._model.tsc(self._latest))

    def dump(self) -> int:
        """Write a snapshot, of a recording of snapshots; returns how many bytes of PT it has."""
        return self._dump(self._model.tsc(self._latest))

    def _packets(
        self, tid: int, data: memoryview, more: bool, now: int, retired: int, branches: int
    ) -> None:
        thread = self._threads.get(tid)
        if thread is None:
            raise RecordError(
                f"the plugin sent packets of thread {tid}, which it had not announced"
            )
        if more or thread.pending:
            thread.pending += data
            if more:
                return
            # A writer that fails may keep the buffer: it is ours no more.
            data = memoryview(thread.pending)
            thread.pending = bytearray()
        self._put(tid, thread.pid, data, now)
        self._retired(tid, retired, branches)

    def _retired(self, tid: int, count: int, branches: int) -> None:
        thread = self._threads.get(tid)
        if thread is not None:
            self.totals.clock += count - thread.retired
            self.totals.branches += branches - thread.branches
            thread.retired, thread.branches = count, branches

    def _begin(self, tid: int, pid: int, parent: int, parent_pid: int, now: int) -> None:
        self.begun = True
        old = self._threads.get(tid)
        if old is not None:  # it runs another program now
            old.decodable = old.all_decodable
            old.retired = old.branches = 0
            old.traced = None
            return
        self._threads[tid] = _ThreadTotals(pid, bytearray())
        self._begun(pid)
        self.totals.threads += 1
        if self.full:
            return
        if parent:
            self._writer.fork(pid, parent_pid, tid, parent, now)
        self._writer.itrace_start(pid, tid, now)

    def _end(
        self,
        tid: int,
        now: int,
        ending: ExitStatus | None = None,
        instructions: int | None = None,
    ) -> None:
        thread = self._threads.pop(tid, None)
        if thread is not None and thread.pending:
            # Of a message that did not come to its end.
            self._put(tid, thread.pid, memoryview(thread.pending), now)
        self._store.end(tid)
        if thread is not None:
            if ending is None and tid == self._root and self.totals.status is not None:
                # Killed without a message: the wait status says how.
                ending = ExitStatus(self.totals.status, of_process=True)
            self._write_exit(thread.pid, tid, now, ending, instructions)

    def _put_truth(self, data: bytes | memoryview) -> None:
        if self._truth is not None:
            try:
                self._truth.write(data)
            except OSError as error:
                raise RecordError(f"cannot write {error.filename}: {error.strerror}") from error
