"""The processes of a recording, by pidfd, and the limit on open files that they need.

A recorder needs up to three open files for each process.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
import threading
import time
from pathlib import Path


class RecordingProcesses:
    """Processes that are provably of the recording whose folder is `folder`, until they end.

    What the plugin says is no proof: meanwhile the process may have ended, and another one have its
    number; and in a pid namespace its number is not ours. Proof is the recording's folder in the
    environment that the process was started with, which its children inherit.
    """

    def __init__(self, folder: str, selector: selectors.BaseSelector) -> None:
        self._mark = b"RTIT_QEMU_FOLDER=" + os.fsencode(folder)
        self._selector = selector
        self._files: dict[int, int] = {}
        self._others = False
        # The rest is for the connections. Processes beyond it have the folder's pipe alone.
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4

    @property
    def may_live(self) -> bool:
        """Whether a process is not known to have ended."""
        return self._others or bool(self._files)

    def saw(self, pid: int) -> None:
        """Register process `pid`, as announced by its plugin."""
        if pid in self._files:
            return
        if len(self._files) >= self._most:
            self._others = True
            return
        try:
            file = os.pidfd_open(pid)
        except (OSError, OverflowError):
            self._others = True
            return
        if self._is_ours(pid, file):
            self._files[pid] = file
            self._selector.register(file, selectors.EVENT_READ, self)
        else:
            self._others = True
            os.close(file)

    def ended(self, file: int) -> int:
        """Return the number of the process of `file`, which the selector reports as ended."""
        self._selector.unregister(file)
        os.close(file)
        [pid] = [pid for pid, each in self._files.items() if each == file]
        del self._files[pid]
        return pid

    def kill(self) -> None:
        """Kill all that have not ended."""
        for file in self._files.values():
            _send_signal(file, signal.SIGKILL)

    def close(self) -> None:
        """Close all descriptors. May be called again."""
        for file in self._files.values():
            os.close(file)
        self._files = {}

    def _is_ours(self, pid: int, file: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        # If it can still be reached, its number was its own while we looked.
        return self._mark in environment.split(b"\0") and _send_signal(file, 0)


def _send_signal(file: int, number: int) -> bool:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(file, number)
        return True
    return False


_RETRY_SECONDS = 0.02
_LOCK = threading.Lock()
_soft = 0
"""The limit as it was before the first of the recordings under way, 0 without one."""
_under_way = 0


class OpenFileLimit:
    """As many as the hard limit allows, until `close`; and one in reserve, to turn away who comes
    when there are no more.
    """

    def __init__(self) -> None:
        global _soft, _under_way  # noqa: PLW0603 - the limit is the process's
        with _LOCK:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if not _under_way:
                _soft = soft
            _under_way += 1
            self._set(hard)
        self._reserve = _reserve_descriptor()
        self._closed = False

    def as_before(self, pid: int) -> None:
        """Give a child the original limit."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_soft, hard))

    def turn_away(self, listener: socket.socket) -> None:
        """Close the next connection that waits; where no file is left for it, a moment passes."""
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
        try:
            listener.accept()[0].close()
        except OSError:
            time.sleep(_RETRY_SECONDS)
        self._reserve = _reserve_descriptor()

    def close(self) -> None:
        """Again is harmless."""
        global _under_way  # noqa: PLW0603
        if self._closed:
            return
        self._closed = True
        if self._reserve >= 0:
            os.close(self._reserve)
        with _LOCK:
            _under_way -= 1
            if not _under_way:
                self._set(_soft)

    @staticmethod
    def _set(soft: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _reserve_descriptor() -> int:
    """Return an open descriptor, or -1 at the limit."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return -1
