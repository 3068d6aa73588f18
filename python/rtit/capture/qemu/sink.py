"""Write the messages of the QEMU plugin to perf.data and to the truth file."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rtit.capture.events import EVENT_RECORD, EventFlag, EventKind
from rtit.capture.output_files import NamedFile, create_private_file
from rtit.capture.qemu.plugin_protocol import PluginMessage
from rtit.capture.request import SizeLimits
from rtit.capture.store.deleted_files import MappingLocation
from rtit.capture.store.recording_writer import RecordingWriter
from rtit.errors import InputError, RecordError
from rtit.perfdata import ExitStatus, Fault, Writer
from rtit.unit.time_model import TimeModel

_TRUTH_HEADER = b"rtit-truth\0\0" + struct.pack("<I", 1)
_TRUTH_COMPLETE = struct.pack("<II", 5, 0)
"""First and last bytes of a truth file."""
_SMALL_FIELDS = {
    EventKind.THREAD: (0, 1, 2),
    EventKind.COMM: (0,),
    EventKind.MMAP: (2,),
    EventKind.CODE: (2,),
    EventKind.EXIT: (0,),
}
"""Which of ip, target and extra are a pid, a tid or a wait status, which have 31 bits."""
_MAX_SMALL_FIELD, _MAX_CLOCK = (1 << 31) - 1, 1 << 56
_FILE_EVENTS = frozenset((EventKind.MMAP, EventKind.CODE, EventKind.COMM))


@dataclass(slots=True)
class _ThreadTotals:
    pid: int
    pending: bytearray
    retired: int = 0
    """Instructions of the current program."""
    branches: int = 0
    traced: tuple[int, int] | None = None
    """Traced instructions and branches of the current program; None: all."""
    decodable: int = 0
    """Traced instructions of earlier programs of the thread."""
    fault: Fault | None = None

    @property
    def total_decodable_instructions(self) -> int:
        """Traced instructions of all programs of the thread."""
        return self.decodable + (self.retired if self.traced is None else self.traced[0])


class PluginSink(RecordingWriter):
    """Receives messages of the plugin, and writes the truth file."""

    def __init__(
        self,
        writer: Writer,
        truth: Path | str | None,
        size_limits: SizeLimits | None = None,
        model: TimeModel | None = None,
    ) -> None:
        super().__init__(writer, size_limits)
        self.has_begun = False
        self._model = model or TimeModel()
        self._last_clock = 0
        self._truth: NamedFile | None = None
        if truth is not None:
            try:
                self._truth = create_private_file(truth)
            except OSError as error:
                raise RecordError(f"{truth}: {error.strerror}") from error
            self._write_truth(_TRUTH_HEADER)

    def process_message(self, message: bytes | memoryview) -> None:
        """Process one message; the buffer may be reused afterwards.

        Raises RecordError for an invalid message, which the program may have forged.
        """
        if len(message) < EVENT_RECORD.size:
            raise RecordError(f"the plugin sent an incomplete message of {len(message)} bytes")
        try:
            self._process_message(message)
        except (InputError, ValueError) as error:
            raise RecordError(f"the plugin sent an invalid message: {error}") from error

    def _process_message(self, message: bytes | memoryview) -> None:
        raise NotImplementedError

    def _write_truth(self, data: bytes | memoryview) -> None:
        if self._truth is not None:
            try:
                self._truth.write(data)
            except OSError as error:
                raise RecordError(f"cannot write {error.filename}: {error.strerror}") from error

    def _close_files(
        self, *, is_truth_complete: bool, facts: Mapping[str, str] | None = None
    ) -> None:
        if self._truth is not None:
            if is_truth_complete:
                self._write_truth(_TRUTH_COMPLETE)
            self._truth.close()
            self._truth = None
        self._close(self._model.tsc(self._last_clock), facts)


class QemuRecordingSink(PluginSink):
    """Writes the messages of the plugin about programs to perf.data and to the truth file."""

    def __init__(
        self,
        writer: Writer,
        truth: Path | str | None,
        size_limits: SizeLimits | None = None,
        model: TimeModel | None = None,
    ) -> None:
        super().__init__(writer, truth, size_limits, model)
        self._threads: dict[int, _ThreadTotals] = {}
        self._leaving_pids: set[int] = set()
        self._ended = 0

    @property
    def all_threads_ended(self) -> bool:
        """Whether threads have begun, and all of them have ended."""
        return self.has_begun and not self._threads

    def _process_message(self, message: bytes | memoryview) -> None:
        kind, flags, _, tid, ip, target, clock, extra = EVENT_RECORD.unpack_from(message)
        small = [tid, *((ip, target, extra)[at] for at in _SMALL_FIELDS.get(kind, ()))]
        if max(small) > _MAX_SMALL_FIELD or clock > _MAX_CLOCK:
            raise ValueError(f"kind {kind}, of {small} at {clock}")
        blob = memoryview(message)[EVENT_RECORD.size :]
        self._last_clock = max(self._last_clock, clock)
        tsc = self._model.tsc(clock)
        writer = self._writer
        if kind == PluginMessage.PACKETS:
            self._add_packets(
                tid, blob, bool(flags & EventFlag.PACKETS_CONTINUE), tsc, target, extra
            )
        elif kind == PluginMessage.COUNTS:
            self._update_counts(tid, target, extra)
        elif kind == PluginMessage.TRACED:
            if tid in self._threads:
                before = self._threads[tid].traced or (0, 0)
                self._threads[tid].traced = target, extra
                self.totals.traced_instructions += target - before[0]
                self.totals.traced_branches += extra - before[1]
        elif kind == PluginMessage.TRUTH:
            self._write_truth(blob)
        elif self.is_full and kind in _FILE_EVENTS:
            return
        elif kind == EventKind.MMAP:
            self._write_mapping(MappingLocation(extra, tid, tsc, ip, target), bytes(blob), flags)
        elif kind == EventKind.CODE:
            self._write_code(MappingLocation(extra, tid, tsc, ip, len(blob)), bytes(blob), flags)
        elif kind == EventKind.COMM:
            name = os.fsdecode(bytes(blob))
            writer.comm(ip, tid, tsc, name, by_exec=bool(flags & EventFlag.COMM_BY_EXEC))
        elif kind == EventKind.THREAD:
            self._start_thread(tid, ip, target, extra, tsc)
        elif kind == EventKind.FAULT:
            if tid in self._threads:
                self._threads[tid].fault = Fault(ip, extra >> 32, target)
        elif kind == EventKind.EXIT:
            self._update_counts(tid, target, extra)
            took = bool(flags & EventFlag.EXIT_TOOK_SIGNAL)
            thread = self._threads.get(tid)
            fault = thread.fault if took and thread is not None else None
            of_process = bool(flags & EventFlag.EXIT_WHOLE_PROCESS)
            traced = thread.total_decodable_instructions if thread is not None else None
            self._end_thread(tid, tsc, ExitStatus(ip, of_process, took, fault), traced)
        elif kind == EventKind.WARNING:
            text = bytes(blob).decode(errors="replace")
            self.totals.warnings.append(f"thread {tid}: {text}")
            if flags & EventFlag.WARNING_LEAVES:
                self._leaving_pids.add(ip)
            elif flags & EventFlag.WARNING_STAYS:
                self._leaving_pids.discard(ip)

    def close(self) -> None:
        """End all threads that have not reported their end, and close the files.

        May be called again.
        """
        killed = sum(thread.pid not in self._leaving_pids for thread in self._threads.values())
        for tid in list(self._threads):
            self._end_thread(tid, self._model.tsc(self._last_clock))
        if killed:
            self.totals.warnings.append(
                "a thread was killed: its last instructions are missing"
                if killed == 1
                else f"{killed} threads were killed: the last instructions of each are missing"
            )
        self._close_files(is_truth_complete=not killed)

    def write_snapshot(self) -> int:
        """Write a snapshot, if the recording takes snapshots; return its bytes of PT."""
        return self._write_snapshot(self._model.tsc(self._last_clock))

    def _add_packets(
        self, tid: int, data: memoryview, continues: bool, tsc: int, retired: int, branches: int
    ) -> None:
        thread = self._threads.get(tid)
        if thread is None:
            raise RecordError(
                f"the plugin sent packets of thread {tid} without announcing the thread"
            )
        if continues or thread.pending:
            thread.pending += data
            if continues:
                return
            # A new bytearray: a writer that fails may keep a view of the old one.
            data = memoryview(thread.pending)
            thread.pending = bytearray()
        self._store_packets(tid, thread.pid, data, tsc)
        self._update_counts(tid, retired, branches)

    def _update_counts(self, tid: int, count: int, branches: int) -> None:
        thread = self._threads.get(tid)
        if thread is not None:
            self.totals.clock += count - thread.retired
            self.totals.branches += branches - thread.branches
            thread.retired, thread.branches = count, branches

    def _start_thread(self, tid: int, pid: int, parent: int, parent_pid: int, tsc: int) -> None:
        self.has_begun = True
        old = self._threads.get(tid)
        if old is not None:  # the thread runs a new program (exec)
            old.decodable = old.total_decodable_instructions
            old.retired = old.branches = 0
            old.traced = None
            return
        self._threads[tid] = _ThreadTotals(pid, bytearray())
        self._note_process(pid)
        self.totals.threads += 1
        if self.is_full:
            return
        if parent:
            self._writer.fork(pid, parent_pid, tid, parent, tsc)
        self._writer.itrace_start(pid, tid, tsc)

    def _end_thread(
        self,
        tid: int,
        tsc: int,
        ending: ExitStatus | None = None,
        instructions: int | None = None,
    ) -> None:
        thread = self._threads.pop(tid, None)
        if thread is not None and thread.pending:
            # Packets of an incomplete sequence of messages.
            self._store_packets(tid, thread.pid, memoryview(thread.pending), tsc)
        self._store.end_thread(tid)
        if thread is not None:
            if ending is None and tid == self._first_pid and self.totals.wait_status is not None:
                # Killed without a message: take the wait status.
                ending = ExitStatus(self.totals.wait_status, of_process=True)
            self._write_exit(thread.pid, tid, tsc, ending, instructions)
