"""How many files the recorder may have open: each process of a recording takes up to three."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time

_A_MOMENT = 0.02
_LOCK = threading.Lock()
_soft = 0
"""The limit as it was before the first of the recordings under way, 0 without one."""
_under_way = 0


class OpenFiles:
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
        self._reserve = _nothing()
        self._closed = False

    def as_before(self, pid: int) -> None:
        """A child has the limit that we had."""
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
            time.sleep(_A_MOMENT)
        self._reserve = _nothing()

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


def _nothing() -> int:
    """A file that is open, -1 if there may be no more."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return -1
