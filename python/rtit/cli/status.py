"""A line on stderr that says how far something is, for what takes long."""

from __future__ import annotations

import time
from typing import TextIO

_QUIET_SECONDS = 2.0
_EVERY_TERMINAL = 0.5
_EVERY_FILE = 10.0


class StatusLine:
    """On a terminal one line that is written over, gone in the end; elsewhere nothing, or with
    `also_files` a line now and then. What is over soon shows nothing.
    """

    def __init__(self, stream: TextIO, *, also_files: bool = False) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._on = self._terminal or also_files
        self._shown = False
        self._begin = self._now = time.monotonic()
        self._next = self._begin + (_QUIET_SECONDS if self._terminal else _EVERY_FILE)

    @property
    def seconds(self) -> float:
        """From the beginning until it was last asked whether it is due."""
        return self._now - self._begin

    def due(self) -> bool:
        """Whether it is time to `show` something."""
        if not self._on:
            return False
        self._now = time.monotonic()
        return self._now >= self._next

    def show(self, text: str) -> None:
        """Show this now."""
        self._next = self._now + (_EVERY_TERMINAL if self._terminal else _EVERY_FILE)
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text}")
            self._shown = True
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Take it away, for something that is to stay."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
