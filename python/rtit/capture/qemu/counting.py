"""Count under QEMU: the plugin counts how often each block runs, and makes no trace.

Each process counts in a memory file that the recorder holds open from the start, so that the counts
survive any end of the process. `rtit.counting` reads the file; its layout is in
`crates/qemu/src/shared/block_counters.rs`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtit.capture.events import EVENT_RECORD, EventFlag, EventKind
from rtit.capture.qemu.installation import QemuInstallation
from rtit.capture.qemu.plugin_protocol import PluginMessage, plugin_settings
from rtit.capture.qemu.qemu_process import (
    GuestProgram,
    QemuProcess,
    arguments_of_guest,
    qemu_for_request,
)
from rtit.capture.qemu.session import QemuSession
from rtit.capture.request import RecordPlan, RecordRequest
from rtit.capture.session import RecordingTotals, exit_code_from_status
from rtit.errors import RecordError

if TYPE_CHECKING:
    from rtit.perfdata import ExitStatus

_MESSAGE_SIZE = 8192
_PID_FIELD = 4
"""Index of the record's field with the pid."""

CountsReader = Callable[[int], Mapping[int, int]]
"""Reads a file of counts; returns the instructions of each thread that still counts there. The
caller closes the file."""


@dataclass(slots=True)
class CountedThread:
    """One thread of process `pid`: its name, and how many instructions it executed."""

    tid: int
    pid: int
    name: str = ""
    instructions: int = 0


@dataclass(slots=True)
class CountedProgram:
    """A program that process `pid` ran, until its end or the next exec.

    `argv` are its arguments, those of the parent after a fork; empty if unknown. `begin` are the
    instructions of the process before.
    """

    pid: int
    argv: tuple[str, ...]
    begin: int = 0
    instructions: int = 0


class CountSink:
    """Processes the plugin's messages: the threads that run, and the files with their counts."""

    is_full = False
    pt_bytes = 0
    ending: ExitStatus | None = None

    def __init__(self, read: CountsReader) -> None:
        self.totals = RecordingTotals()
        self.facts: dict[str, str] = {}
        self.has_begun = False
        self.is_complete = True
        self.threads: list[CountedThread] = []
        self.programs: list[CountedProgram] = []
        self._running_programs: dict[int, CountedProgram] = {}
        self._arguments: dict[int, tuple[str, ...]] = {}
        self._read = read
        self._files: dict[int, int] = {}
        self._running: dict[int, CountedThread] = {}
        self._names: dict[int, str] = {}
        self._leaving_pids: set[int] = set()

    @property
    def all_threads_ended(self) -> bool:
        """Whether threads have begun, and all of them have ended."""
        return self.has_begun and not self._running

    def process_message(self, message: bytes | memoryview) -> None:
        """Process one message; the buffer may be reused afterwards."""
        if len(message) < EVENT_RECORD.size:
            raise RecordError(f"the plugin sent an incomplete message of {len(message)} bytes")
        kind, flags, _, tid, ip, target, _, extra = EVENT_RECORD.unpack_from(message)
        text = os.fsdecode(bytes(message[EVENT_RECORD.size :]))
        if kind == EventKind.THREAD:
            self._start_thread(tid, ip, target, extra)
        elif kind == EventKind.COMM:
            self._names[tid] = text
            if tid in self._running:
                self._running[tid].name = text
        elif kind == EventKind.EXIT:
            if (thread := self._running.pop(tid, None)) is not None:
                thread.instructions += target
        elif kind == PluginMessage.COUNTS:
            if tid in self._running:
                self._running[tid].instructions += target
        elif kind == EventKind.WARNING:
            self.totals.warnings.append(f"thread {tid}: {text}")
            if flags & EventFlag.WARNING_LEAVES:
                self._leaving_pids.add(ip)
            elif flags & EventFlag.WARNING_STAYS:
                self._leaving_pids.discard(ip)
            elif flags & EventFlag.WARNING_UNCOUNTED:
                self.is_complete = False

    def set_counts_file(self, pid: int, file: int) -> None:
        """Register the file in which a process, or its new program, counts."""
        self.read_final_counts(pid)
        self._files[pid] = file
        self._begin_program(pid)

    def set_arguments(self, pid: int, argv: tuple[str, ...]) -> None:
        """Register the arguments of a process that has started or runs a new program."""
        self._arguments[pid] = argv

    def _begin_program(self, pid: int) -> None:
        before = self._end_program(pid)
        program = CountedProgram(pid, self._arguments.pop(pid, ()), before)
        self._running_programs[pid] = program
        self.programs.append(program)

    def _end_program(self, pid: int) -> int:
        """End the program of a process; return the instructions of the process."""
        executed = sum(each.instructions for each in self.threads if each.pid == pid)
        if (program := self._running_programs.pop(pid, None)) is not None:
            program.instructions = executed - program.begin
        return executed

    def report_missing_file(self, pid: int) -> None:
        """Note that the file with the counts of a process is missing."""
        self.read_final_counts(pid)
        self._begin_program(pid)
        self.is_complete = False
        self.totals.warnings.append(f"process {pid} is not counted: too many open files")

    def read_final_counts(self, pid: int) -> None:
        """Read the final counts of process `pid`."""
        file = self._files.pop(pid, None)
        if file is None:
            return
        try:
            for tid, instructions in self._read(file).items():
                if tid in self._running:
                    self._running[tid].instructions += instructions
        finally:
            os.close(file)

    def write_snapshot(self) -> int:
        """Return 0: counting has no snapshots."""
        return 0

    def close(self) -> None:
        """Read the remaining counts. May be called again."""
        for pid in list(self._files):
            self.read_final_counts(pid)
        for pid in list(self._running_programs):
            self._end_program(pid)
        killed = sum(thread.pid not in self._leaving_pids for thread in self._running.values())
        self._running.clear()
        if killed:
            self.totals.warnings.append(
                "a thread was killed: its last block is not counted"
                if killed == 1
                else f"{killed} threads were killed: the last block of each is not counted"
            )

    def _start_thread(self, tid: int, pid: int, parent: int, parent_pid: int) -> None:
        self.has_begun = True
        if tid in self._running:  # the thread runs a new program (exec)
            return
        program, forked = self._running_programs.get(pid), self._running_programs.get(parent_pid)
        if program is not None and forked is not None and not program.argv:
            program.argv = forked.argv
        name = self._names.get(tid) or self._names.get(parent) or self._names.get(parent_pid, "")
        thread = CountedThread(tid, pid, name)
        self._running[tid] = thread
        self._names[tid] = name
        self.threads.append(thread)
        self.totals.threads += 1


class CountSession(QemuSession):
    """A program under QEMU with counters instead of a trace."""

    def __init__(self, plan: RecordPlan, sink: CountSink, qemu: QemuProcess) -> None:
        super().__init__(plan, sink, qemu)
        self._count_sink = sink

    @property
    def threads(self) -> list[CountedThread]:
        """All threads of the program, in order of their start; complete after `finish_counting`."""
        return self._count_sink.threads

    @property
    def programs(self) -> list[CountedProgram]:
        """All programs, in order of their start; complete after `finish_counting`."""
        return self._count_sink.programs

    @property
    def is_complete(self) -> bool:
        """Whether the counts of every program of every process are known."""
        return self._count_sink.is_complete

    def finish_counting(self) -> int:
        """Read all counts after the program's end; return its exit code, 128 + N for signal N."""
        self._record_end()
        self._close()
        return exit_code_from_status(self.totals.wait_status or 0)

    def _receive_message(self, connection: socket.socket) -> memoryview:
        data, files, flags, _ = socket.recv_fds(connection, _MESSAGE_SIZE, 1)
        if len(data) >= EVENT_RECORD.size and data[0] == PluginMessage.COUNTS:
            pid = EVENT_RECORD.unpack_from(data)[_PID_FIELD]
            if files:
                self._count_sink.set_counts_file(pid, files.pop())
            elif flags & socket.MSG_CTRUNC:  # no free descriptor: the kernel dropped the file
                self._count_sink.report_missing_file(pid)
        elif len(data) >= EVENT_RECORD.size and data[0] == PluginMessage.HELLO:
            # The process waits for the reply, so it still runs this program.
            pid = EVENT_RECORD.unpack_from(data)[_PID_FIELD]
            self._count_sink.set_arguments(pid, arguments_of_guest(pid))
        for file in files:
            os.close(file)
        return memoryview(data)

    def _process_ended(self, pid: int) -> None:
        for connection in list(self._connections):
            self._receive_messages(connection, None)
        self._count_sink.read_final_counts(pid)


def start_counting(
    request: RecordRequest, read: CountsReader, *, installation: QemuInstallation | None = None
) -> CountSession:
    """Start a program under QEMU that counts executed blocks; return its session.

    `read` is called with the file of each process after its end. Raises UsageError, RecordError
    (exit codes 125, 126, 127).
    """
    installation = qemu_for_request(request, installation)
    plan = request.plan_recording()
    guest = GuestProgram.from_request(request)
    settings = plugin_settings(
        plan.options, "counts", 1, (), plan.window, plan.size_limits, plan.time
    )
    qemu = QemuProcess(installation, settings, guest)
    try:
        session = CountSession(plan, CountSink(read), qemu)
        try:
            session.wait_for_start()
        except BaseException:
            session.abandon()
            raise
    except BaseException:
        qemu.abandon()
        raise
    return session
