"""Progress on standard error: a line that is written over, and the share of PT that was read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rtit.trace import ByteSource, Stream

_QUIET_SECONDS = 2.0
_EVERY_TERMINAL = 0.5
_EVERY_FILE = 10.0
_STEP = 1 << 16


class StatusLine:
    """A line that is written over on a terminal, and removed at the end.

    Elsewhere it prints nothing, or with `also_files` a line now and then. Nothing is shown in the
    first seconds.
    """

    def __init__(self, stream: TextIO, *, also_files: bool = False) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._on = self._terminal or also_files
        self._shown = False
        self._begin = self._now = time.monotonic()
        self._next = self._begin + (_QUIET_SECONDS if self._terminal else _EVERY_FILE)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds from the beginning to the last call of `is_due`."""
        return self._now - self._begin

    def is_due(self) -> bool:
        """Return whether it is time to `show` a text."""
        if not self._on:
            return False
        self._now = time.monotonic()
        return self._now >= self._next

    def show_text(self, text: str) -> None:
        """Show this text now."""
        self._next = self._now + (_EVERY_TERMINAL if self._terminal else _EVERY_FILE)
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text}")
            self._shown = True
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def erase_text(self) -> None:
        """Remove the line before text that stays."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


@contextmanager
def show_progress(command: str, streams: Sequence[Stream], *, prints: bool) -> Iterator[None]:
    """Show how much of these streams has been read, if standard error is a terminal.

    `prints`: the command writes its output meanwhile; on a terminal that output shows progress
    itself, and no line is shown.
    """
    line = StatusLine(sys.stderr)
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
        yield
        return
    total, count = sum(stream.size for stream in streams), 0

    def add_bytes(size: int) -> None:
        nonlocal count
        count += size
        if line.is_due():
            share = count / total if total else 1
            seconds = line.elapsed_seconds
            line.show_text(f"rtit {command}: {share:.0%} of {total:,} bytes of PT, {seconds:.0f} s")

    sources = [stream.source for stream in streams]
    for stream in streams:
        stream.source = _ProgressSource(stream.source, add_bytes)
    try:
        yield
    finally:
        for stream, source in zip(streams, sources, strict=True):
            stream.source = source
        line.erase_text()


class _ProgressSource:
    """A source that reports the bytes read from it; bytes that are read again count once."""

    def __init__(self, source: ByteSource, report: Callable[[int], None]) -> None:
        self._source = source
        self._report = report
        self._furthest = 0

    @property
    def size(self) -> int:
        return self._source.size

    def chunks(self) -> Iterator[memoryview]:
        at = 0
        for part in self._source.chunks():
            for start in range(0, len(part), _STEP):
                step = part[start : start + _STEP]
                at += len(step)
                self._report(max(0, at - self._furthest))
                self._furthest = max(self._furthest, at)
                yield step
