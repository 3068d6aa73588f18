"""A recording under QEMU: qemu-x86_64 runs the program, and a plugin has one trace unit per thread.

The plugin sends packets and sideband as messages over a socket: a record as in
`rtit.capture.events`, then its data. Each thread has its own clock. At the thread's start, and when
a system call returns, the clock is raised to the latest clock that any thread has published.
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
from rtit.capture.qemu.plugin_protocol import SNAPSHOT_REQUEST_OFFSET, PluginMessage, edges_passed
from rtit.capture.qemu.processes import RecordingProcesses
from rtit.capture.qemu.qemu_process import QemuProcess
from rtit.capture.request import RecordPlan
from rtit.capture.session import RecordingSink, TraceUnitSession

_MESSAGE_SIZE = 1 << 18
_START_SECONDS = 30.0
_GATHER_SECONDS = 0.05
_PROCESS_EVENTS = frozenset((EventKind.THREAD, EventKind.EXEC))
_SENT = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)
"""Signals from outside: QEMU does not end by them by itself."""
_PID_FORMAT = 4
"""Where such a message has its process's number."""


class PluginSink(RecordingSink, Protocol):
    """What takes the plugin's messages."""

    begun: bool
    """The program has."""

    @property
    def quiet(self) -> bool:
        """Return whether everything that has begun has also ended."""

    def feed(self, message: bytes | memoryview) -> None:
        """Take one message; nothing of it is kept in place."""

    def dump(self) -> int:
        """Write a snapshot; returns how many bytes of PT it has."""

    def close(self) -> None:
        """End what has not said that it ends. Again is harmless."""


class QemuSession(TraceUnitSession):
    """A recording under QEMU, which has been started; `begin` lets its program begin."""

    def __init__(self, plan: RecordPlan, sink: PluginSink, child: QemuProcess) -> None:
        super().__init__(plan, sink)
        self._sink = sink
        self._qemu = child.qemu
        self._process = child.process
        self._folder = child.folder
        self._open_files = child.open_files
        self._listener = child.listener
        self._selector = selectors.DefaultSelector()
        self._processes = RecordingProcesses(self._folder.name, self._selector)
        self._connections: list[socket.socket] = []
        self._buffer = memoryview(bytearray(_MESSAGE_SIZE))
        self._asked = 0
        self._dump_at: float | None = None

    @property
    def pid(self) -> int:
        """The first process."""
        return self._process.pid

    @property
    def folder(self) -> str:
        """Where the recorder and its QEMUs find each other."""
        return self._folder.name

    def step(self, timeout: float) -> bool:
        """Take what the plugin has sent, waiting `timeout` seconds at most. False when everything
        has ended.
        """
        if self._dump_at is not None and time.monotonic() >= self._dump_at:
            self._dump_at = None
            self._sink.dump()
        elif self._dump_at is not None:
            timeout = min(timeout, _GATHER_SECONDS)
        was_full = self._sink.full
        if self._sink.quiet and not self._connections:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
                return False
            return True
        ready = self._selector.select(0 if self._is_over() else timeout)
        for key, _ in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                # what came before may have found that it is closed
                if key.fileobj in self._connections:
                    self._receive(key.fileobj, 64)
            else:
                self._ended(self._processes.ended(key.fd))
        if self._sink.full and not was_full:
            self._ask()
        if self._connections or ready:
            return True
        return self._process.poll() is None

    def _is_over(self) -> bool:
        """Nobody is left who could say anything."""
        if self._connections or self._processes.may_live:
            return False
        return self._process.poll() is not None

    def snapshot(self) -> None:
        """Write the last packets of every thread, of a recording that keeps those alone.

        Threads that run are asked for what they hold back; `step` writes when they have had time.
        """
        self._asked += 1
        self._ask()
        self._dump_at = time.monotonic() + _GATHER_SECONDS

    def _ask(self) -> None:
        """Tell the plugin, in the page that it shares with us."""
        word = struct.pack("<Q", self._asked << 1 | self._sink.full)
        with contextlib.suppress(OSError), (Path(self._folder.name) / "clock").open("r+b") as page:
            page.seek(SNAPSHOT_REQUEST_OFFSET)
            page.write(word)

    def signal(self, number: int) -> None:
        """Send a signal to the program."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the program and everything it started; `step` then comes to its end."""
        self._sink.totals.killed = True
        # Who has not connected yet cannot any more, and ends.
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._listener.close()
        self.signal(signal.SIGKILL)
        self._processes.kill()
        self._folder.kill()
        # Who is left, because nothing proves that it is ours, ends when it has something to say.
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)

    def begin(self) -> None:
        """Let the program begin; it has on return, or somebody has ended it. Raises QemuStartError
        where QEMU ends before, or does not take the plugin.
        """
        self._folder.guard()
        self._selector.register(self._listener, selectors.EVENT_READ)
        limit = time.monotonic() + _START_SECONDS
        while not self._sink.begun:
            if not self.step(0.05):
                if -self._process.wait() in _SENT:
                    return
                raise QemuStartError(f"{self._qemu} ended before the program began")
            if time.monotonic() > limit:
                raise QemuStartError(f"{self._qemu} did not load the plugin")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._turn_away(error)
            return
        # Its process may have sent messages on another connection before it ran a new program.
        for each in list(self._connections):
            self._receive(each, None)
        connection.setblocking(False)
        self._connections.append(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _turn_away(self, error: OSError) -> None:
        """The process that waits for an answer ends."""
        self._open_files.turn_away(self._listener)
        warning = f"too many processes at once, those beyond were ended: {error.strerror}"
        if warning not in self._sink.totals.warnings:
            self._sink.totals.warnings.append(warning)

    def _receive(self, connection: socket.socket, limit: int | None) -> None:
        taken = 0
        while limit is None or taken < limit:
            try:
                message = self._take(connection)
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
                self._sink.feed(message)
                if message[0] in _PROCESS_EVENTS:
                    self._processes.saw(EVENT_RECORD.unpack_from(message)[_PID_FORMAT])

    def _ended(self, pid: int) -> None:
        """A process has ended, whatever it has said."""

    def _take(self, connection: socket.socket) -> memoryview:
        """The next message; empty at the end. Raises OSError."""
        return self._buffer[: connection.recv_into(self._buffer)]

    def _settle(self) -> None:
        totals = self.totals
        status = self._process.wait()
        totals.status = -status if status < 0 else status << 8
        words = Path(self._folder.name, "clock").read_bytes()
        totals.edges = edges_passed(words, self._plan.window)

    def _close(self) -> None:
        self._sink.close()
        self._processes.close()
        self._selector.close()
        for each in (self._listener, *self._connections):
            each.close()
        self._open_files.close()
        self._folder.cleanup()
