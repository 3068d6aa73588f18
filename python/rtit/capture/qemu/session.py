"""A recording under QEMU: qemu-x86_64 runs the program; its plugin has a trace unit per thread.

The plugin sends packets and sideband as messages over a socket: a record as in
`rtit.capture.events`, then its data. Each thread has its own clock. At the thread's start, when a
system call returns, and after an atomic instruction, the clock is raised to the latest clock that
any thread has published.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Protocol

from rtit.capture.events import EVENT_RECORD, EventKind
from rtit.capture.qemu.installation import QemuStartError
from rtit.capture.qemu.plugin_protocol import (
    SNAPSHOT_REQUEST_OFFSET,
    PluginMessage,
    window_edges_passed,
)
from rtit.capture.qemu.qemu_process import QemuProcess, RecordingProcesses
from rtit.capture.request import RecordPlan
from rtit.capture.session import RecordingSink, TraceUnitSession

_MESSAGE_SIZE = 1 << 18
_START_SECONDS = 30.0
_SNAPSHOT_DELAY_SECONDS = 0.05
_PROCESS_EVENTS = frozenset((EventKind.THREAD, EventKind.EXEC))
_TERMINATING_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGKILL,
    signal.SIGTERM,
)
"""Signals that only a user or another process sends to QEMU."""
_PID_FIELD = 4
"""Index of the record's field with the pid in `_PROCESS_EVENTS`."""


class PluginSink(RecordingSink, Protocol):
    """Processes the plugin's messages."""

    has_begun: bool
    """Whether the program's first thread has begun."""

    @property
    def all_threads_ended(self) -> bool:
        """Whether threads have begun, and all of them have ended."""

    def process_message(self, message: bytes | memoryview) -> None:
        """Process one message; the buffer may be reused afterwards."""

    def write_snapshot(self) -> int:
        """Write a snapshot; return its bytes of PT."""

    def close(self) -> None:
        """End all threads that have not reported their end. May be called again."""


class QemuSession(TraceUnitSession):
    """A recording under QEMU: the process has started; `wait_for_start` lets the program begin."""

    _sink: PluginSink

    def __init__(self, plan: RecordPlan, sink: PluginSink, qemu: QemuProcess) -> None:
        super().__init__(plan, sink)
        self._qemu_path = qemu.qemu
        self._process = qemu.process
        self._folder = qemu.folder
        self._open_files = qemu.open_files
        self._listener = qemu.listener
        self._selector = selectors.DefaultSelector()
        self._processes = RecordingProcesses(self._folder.name, self._selector)
        self._connections: list[socket.socket] = []
        self._buffer = memoryview(bytearray(_MESSAGE_SIZE))
        self._snapshot_requests = 0
        self._snapshot_time: float | None = None

    @property
    def pid(self) -> int:
        """The first process."""
        return self._process.pid

    @property
    def folder(self) -> str:
        """The path of the recording folder."""
        return self._folder.name

    def step(self, timeout: float) -> bool:
        """Process the plugin's messages; wait for them at most `timeout` seconds.

        Returns False when all processes have ended.
        """
        if self._snapshot_time is not None and time.monotonic() >= self._snapshot_time:
            self._snapshot_time = None
            self._sink.write_snapshot()
        elif self._snapshot_time is not None:
            timeout = min(timeout, _SNAPSHOT_DELAY_SECONDS)
        was_full = self._sink.is_full
        if self._sink.all_threads_ended and not self._connections:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
                return False
            return True
        ready = self._selector.select(0 if self._has_ended() else timeout)
        for key, _ in ready:
            if key.fileobj is self._listener:
                self._accept_connection()
            elif isinstance(key.fileobj, socket.socket):
                # An earlier iteration may have closed it.
                if key.fileobj in self._connections:
                    self._receive_messages(key.fileobj, 64)
            else:
                self._process_ended(self._processes.remove_ended_process(key.fd))
        if self._sink.is_full and not was_full:
            self._publish_snapshot_request()
        if self._connections or ready:
            return True
        return self._process.poll() is None

    def _has_ended(self) -> bool:
        """Return whether no process remains that could send a message."""
        if self._connections or self._processes.has_running_processes:
            return False
        return self._process.poll() is not None

    def snapshot(self) -> None:
        """Request a snapshot, the last packets of every thread, if the recording takes snapshots.

        Running threads first send their pending packets; `step` writes after a short delay.
        """
        self._snapshot_requests += 1
        self._publish_snapshot_request()
        self._snapshot_time = time.monotonic() + _SNAPSHOT_DELAY_SECONDS

    def _publish_snapshot_request(self) -> None:
        """Write the number of requests and whether the file is full to the shared page."""
        word = struct.pack("<Q", self._snapshot_requests << 1 | self._sink.is_full)
        with contextlib.suppress(OSError), (Path(self._folder.name) / "clock").open("r+b") as page:
            page.seek(SNAPSHOT_REQUEST_OFFSET)
            page.write(word)

    def signal(self, number: int) -> None:
        """Send a signal to the program."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the program and everything it started. `step` must then be called until it returns
        False.
        """
        self._sink.totals.killed = True
        # Processes that have not connected yet fail to, and end.
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._listener.close()
        self.signal(signal.SIGKILL)
        self._processes.kill()
        self._folder.kill()
        # The remaining processes, which are not provably ours, end at their next message.
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)

    def wait_for_start(self) -> None:
        """Let the program begin; return when it has, or when a signal has ended it.

        Raises QemuStartError if QEMU ends before that, or does not load the plugin.
        """
        self._folder.start_cleanup_process()
        self._selector.register(self._listener, selectors.EVENT_READ)
        limit = time.monotonic() + _START_SECONDS
        while not self._sink.has_begun:
            if not self.step(0.05):
                if -self._process.wait() in _TERMINATING_SIGNALS:
                    return
                raise QemuStartError(f"{self._qemu_path} ended before the program began")
            if time.monotonic() > limit:
                raise QemuStartError(f"{self._qemu_path} did not load the plugin")

    def _accept_connection(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._reject_connection(error)
            return
        # After an exec the process has a new connection: first read the messages of the old one.
        for each in list(self._connections):
            self._receive_messages(each, None)
        connection.setblocking(False)
        self._connections.append(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _reject_connection(self, error: OSError) -> None:
        """Close the next connection: its process waits for a reply, gets none, and ends."""
        self._open_files.reject_connection(self._listener)
        warning = (
            "too many processes at the same time; rtit ended all further processes: "
            f"{error.strerror}"
        )
        if warning not in self._sink.totals.warnings:
            self._sink.totals.warnings.append(warning)

    def _receive_messages(self, connection: socket.socket, limit: int | None) -> None:
        taken = 0
        while limit is None or taken < limit:
            try:
                message = self._receive_message(connection)
            except BlockingIOError:
                return
            except OSError:
                message = self._buffer[:0]
            if not message:
                self._selector.unregister(connection)
                self._connections.remove(connection)
                connection.close()
                return
            taken += 1
            if message[0] == PluginMessage.HELLO:
                with contextlib.suppress(OSError):
                    connection.send(b"\1")
            else:
                self._sink.process_message(message)
                if message[0] in _PROCESS_EVENTS:
                    self._processes.track_process(EVENT_RECORD.unpack_from(message)[_PID_FIELD])

    def _process_ended(self, pid: int) -> None:
        """Handle the end of a tracked process."""

    def _receive_message(self, connection: socket.socket) -> memoryview:
        """Return the next message, an empty one at the end. Raises OSError."""
        return self._buffer[: connection.recv_into(self._buffer)]

    def _record_end(self) -> None:
        totals = self.totals
        status = self._process.wait()
        totals.wait_status = -status if status < 0 else status << 8
        words = Path(self._folder.name, "clock").read_bytes()
        totals.window_edges_passed = window_edges_passed(words, self._plan.window)

    def _close(self) -> None:
        self._sink.close()
        self._processes.close()
        self._selector.close()
        for each in (self._listener, *self._connections):
            each.close()
        self._open_files.close()
        self._folder.remove_folder()
