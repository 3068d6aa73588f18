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
    """Running processes that provably belong to the recording with this folder.

    The pid that a plugin reports is no proof: the process may have ended and another one may have
    its number, and in a pid namespace the number differs from ours. The proof is the recording's
    folder in the initial environment of the process, which its children inherit.
    """

    def __init__(self, folder: str, selector: selectors.BaseSelector) -> None:
        self._environment_entry = b"RTIT_QEMU_FOLDER=" + os.fsencode(folder)
        self._selector = selector
        self._files: dict[int, int] = {}
        self._has_untracked = False
        # The other descriptors are for connections. Processes above the limit are not tracked; the
        # pipe in the recording folder ends them.
        self._max_processes = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4

    @property
    def any_may_run(self) -> bool:
        """Whether a process may still run."""
        return self._has_untracked or bool(self._files)

    def add(self, pid: int) -> None:
        """Track process `pid`, which its plugin has announced, if it belongs to the recording."""
        if pid in self._files:
            return
        if len(self._files) >= self._max_processes:
            self._has_untracked = True
            return
        try:
            file = os.pidfd_open(pid)
        except (OSError, OverflowError):
            self._has_untracked = True
            return
        if self._is_ours(pid, file):
            self._files[pid] = file
            self._selector.register(file, selectors.EVENT_READ, self)
        else:
            self._has_untracked = True
            os.close(file)

    def remove_ended(self, file: int) -> int:
        """Remove the process of pidfd `file`, which has ended; return its pid."""
        self._selector.unregister(file)
        os.close(file)
        [pid] = [pid for pid, each in self._files.items() if each == file]
        del self._files[pid]
        return pid

    def kill(self) -> None:
        """Kill all tracked processes."""
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
        # If the pidfd is still alive, the environment that was read belongs to its process.
        return self._environment_entry in environment.split(b"\0") and _send_signal(file, 0)


def _send_signal(file: int, number: int) -> bool:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(file, number)
        return True
    return False


_RETRY_SECONDS = 0.02
_LOCK = threading.Lock()
_original_soft_limit = 0
"""The soft limit before the first of the active recordings; 0 without one."""
_active_limits = 0


class OpenFileLimit:
    """Raises the soft limit on open files to the hard limit, until `close`.

    It keeps one descriptor in reserve, to accept and close a connection at the limit.
    """

    def __init__(self) -> None:
        global _original_soft_limit, _active_limits  # noqa: PLW0603 - the limit is the process's
        with _LOCK:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if not _active_limits:
                _original_soft_limit = soft
            _active_limits += 1
            self._set_soft_limit(hard)
        self._reserve = _reserve_descriptor()
        self._closed = False

    def restore_in_child(self, pid: int) -> None:
        """Restore the original limit in a child process."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_original_soft_limit, hard))

    def reject_connection(self, listener: socket.socket) -> None:
        """Accept and close the next connection; sleep briefly if no descriptor is free for it."""
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
        try:
            listener.accept()[0].close()
        except OSError:
            time.sleep(_RETRY_SECONDS)
        self._reserve = _reserve_descriptor()

    def close(self) -> None:
        """Restore the original limit if no other recording is active. May be called again."""
        global _active_limits  # noqa: PLW0603
        if self._closed:
            return
        self._closed = True
        if self._reserve >= 0:
            os.close(self._reserve)
        with _LOCK:
            _active_limits -= 1
            if not _active_limits:
                self._set_soft_limit(_original_soft_limit)

    @staticmethod
    def _set_soft_limit(soft: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _reserve_descriptor() -> int:
    """Return an open descriptor, or -1 at the limit."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return -1
