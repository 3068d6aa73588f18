"""Count under QEMU: the plugin counts how often each block runs, and makes no trace.

Each process counts in a memory file that the recorder has open from the start, so that no way to
end a process loses counts. `rtit.counting` reads the file; its layout is in
`crates/qemu/src/shared/block_counters.rs`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtit.capture.events import EVENT_RECORD, EventKind, Flag
from rtit.capture.qemu.guest_program import GuestProgram, qemu_for_request
from rtit.capture.qemu.installation import QemuInstallation
from rtit.capture.qemu.plugin_protocol import PluginMessage, plugin_settings
from rtit.capture.qemu.qemu_process import QemuProcess
from rtit.capture.qemu.session import QemuSession
from rtit.capture.recording import RecordingTotals, exit_code_of
from rtit.capture.request import RecordPlan, RecordRequest
from rtit.errors import RecordError

if TYPE_CHECKING:
    from rtit.perfdata import ExitStatus

_MESSAGE_SIZE = 8192
_PID_FORMAT = 4
"""Where a message with a file has its process's number."""

CountsReader = Callable[[int], Mapping[int, int]]
"""Reads the counts in a file, which is closed afterwards. By thread that still counts there, how
many instructions."""


@dataclass(slots=True)
class CountedThread:
    """One thread of process `pid`: its name, and how many instructions it executed."""

    tid: int
    pid: int
    name: str = ""
    instructions: int = 0


class CountSink:
    """Takes the messages of the plugin: which threads run, and where their counts are."""

    full = False
    pt_bytes = 0
    ending: ExitStatus | None = None

    def __init__(self, read: CountsReader) -> None:
        self.totals = RecordingTotals()
        self.facts: dict[str, str] = {}
        self.begun = False
        self.whole = True
        self.threads: list[CountedThread] = []
        self._read = read
        self._files: dict[int, int] = {}
        self._live: dict[int, CountedThread] = {}
        self._names: dict[int, str] = {}
        self._leaving: set[int] = set()

    @property
    def quiet(self) -> bool:
        """Return whether everything that has begun has also ended."""
        return self.begun and not self._live

    def feed(self, message: bytes | memoryview) -> None:
        """Take one message; nothing of it is kept in place."""
        if len(message) < EVENT_RECORD.size:
            raise RecordError(f"the plugin sent {len(message)} bytes that are no message")
        kind, flags, _, tid, ip, target, _, extra = EVENT_RECORD.unpack_from(message)
        text = os.fsdecode(bytes(message[EVENT_RECORD.size :]))
        if kind == EventKind.THREAD:
            self._begin(tid, ip, target, extra)
        elif kind == EventKind.COMM:
            self._names[tid] = text
            if tid in self._live:
                self._live[tid].name = text
        elif kind == EventKind.EXIT:
            if (thread := self._live.pop(tid, None)) is not None:
                thread.instructions += target
        elif kind == PluginMessage.COUNTS:
            if tid in self._live:
                self._live[tid].instructions += target
        elif kind == EventKind.WARNING:
            self.totals.warnings.append(f"thread {tid}: {text}")
            if flags & Flag.WARNING_LEAVES:
                self._leaving.add(ip)
            elif flags & Flag.WARNING_STAYS:
                self._leaving.discard(ip)
            elif flags & Flag.WARNING_UNCOUNTED:
                self.whole = False

    def counts(self, pid: int, file: int) -> None:
        """Register the file in which a process, or its new program, counts."""
        self.ended(pid)
        self._files[pid] = file

    def lost(self, pid: int) -> None:
        """Note that the file with the counts of a process is missing."""
        self.ended(pid)
        self.whole = False
        self.totals.warnings.append(f"process {pid} is not counted: too many open files")

    def ended(self, pid: int) -> None:
        """Read the final counts of process `pid`."""
        file = self._files.pop(pid, None)
        if file is None:
            return
        try:
            for tid, instructions in self._read(file).items():
                if tid in self._live:
                    self._live[tid].instructions += instructions
        finally:
            os.close(file)

    def dump(self) -> int:
        """Return 0: counting has no snapshots."""
        return 0

    def close(self) -> None:
        """Read what has not been read. Again is harmless."""
        for pid in list(self._files):
            self.ended(pid)
        lost = sum(thread.pid not in self._leaving for thread in self._live.values())
        self._live.clear()
        if lost:
            self.totals.warnings.append(
                "a thread was killed: its last block is not counted"
                if lost == 1
                else f"{lost} threads were killed: the last block of each is not counted"
            )

    def _begin(self, tid: int, pid: int, parent: int, parent_pid: int) -> None:
        self.begun = True
        if tid in self._live:  # it runs another program now
            return
        name = self._names.get(tid) or self._names.get(parent) or self._names.get(parent_pid, "")
        thread = CountedThread(tid, pid, name)
        self._live[tid] = thread
        self._names[tid] = name
        self.threads.append(thread)
        self.totals.threads += 1


class CountSession(QemuSession):
    """A program that is counted."""

    def __init__(self, plan: RecordPlan, sink: CountSink, child: QemuProcess) -> None:
        super().__init__(plan, sink, child)
        self._counts = sink

    @property
    def threads(self) -> list[CountedThread]:
        """All that have run, in the order in which they began; once it has been closed."""
        return self._counts.threads

    @property
    def whole(self) -> bool:
        """No process, and no program of one, is without counts."""
        return self._counts.whole

    def end(self) -> int:
        """Read all counts: the program has ended. Its exit code, 128 + N if signal N ended it."""
        self._settle()
        self._close()
        return exit_code_of(self.totals.status or 0)

    def _take(self, connection: socket.socket) -> memoryview:
        data, files, flags, _ = socket.recv_fds(connection, _MESSAGE_SIZE, 1)
        if len(data) >= EVENT_RECORD.size and data[0] == PluginMessage.COUNTS:
            pid = EVENT_RECORD.unpack_from(data)[_PID_FORMAT]
            if files:
                self._counts.counts(pid, files.pop())
            elif flags & socket.MSG_CTRUNC:  # there is none left for it
                self._counts.lost(pid)
        for file in files:
            os.close(file)
        return memoryview(data)

    def _ended(self, pid: int) -> None:
        for connection in list(self._connections):
            self._receive(connection, None)
        self._counts.ended(pid)


def start_counting(
    request: RecordRequest, read: CountsReader, *, found: QemuInstallation | None = None
) -> CountSession:
    """Start a program under QEMU and count what it executes.

    `read` gets the file of each process when it has ended. Raises UsageError, RecordError (exit
    codes 125, 126, 127).
    """
    found = qemu_for_request(request, found)
    plan = request.plan()
    guest = GuestProgram.of(request)
    settings = plugin_settings(
        plan.options, "counts", 1, (), plan.window, plan.size_limits, plan.time
    )
    child = QemuProcess(found, settings, guest)
    try:
        session = CountSession(plan, CountSink(read), child)
        try:
            session.begin()
        except BaseException:
            session.abandon()
            raise
    except BaseException:
        child.abandon()
        raise
    return session
