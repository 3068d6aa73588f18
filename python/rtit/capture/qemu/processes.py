"""The processes of a recording, each by a file descriptor that names it and none after it."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
from pathlib import Path


class Processes:
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
        """Not all that were seen are known to have ended."""
        return self._others or bool(self._files)

    def saw(self, pid: int) -> None:
        """The plugin in a process says that it has the number `pid`."""
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
        """The selector says that the process behind `file` has ended. Its number."""
        self._selector.unregister(file)
        os.close(file)
        [pid] = [pid for pid, each in self._files.items() if each == file]
        del self._files[pid]
        return pid

    def kill(self) -> None:
        """Kill all that have not ended."""
        for file in self._files.values():
            _signal(file, signal.SIGKILL)

    def close(self) -> None:
        """Forget all. Again is harmless."""
        for file in self._files.values():
            os.close(file)
        self._files = {}

    def _is_ours(self, pid: int, file: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        # If it can still be reached, its number was its own while we looked.
        return self._mark in environment.split(b"\0") and _signal(file, 0)


def _signal(file: int, number: int) -> bool:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(file, number)
        return True
    return False
