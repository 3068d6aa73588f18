"""Progress on a terminal: a line on standard error that is written over, with rate, share and time
left.

The package `rich` would do the same, and add 40 ms to the start of each command.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rtit.trace import ByteSource, Stream

_QUIET_SECONDS = 2.0
_INTERVAL_SECONDS = 0.5
_STEP = 1 << 16


class StatusLine:
    """A line that is written over on a terminal, and removed at the end.

    Elsewhere, and in continuous integration (environment variable CI), it prints nothing. Nothing
    is shown in the first seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_on = stream.isatty() and not os.environ.get("CI")
        self._shown = False
        self._begin = self._now = time.monotonic()
        self._next = self._begin + _QUIET_SECONDS

    @property
    def elapsed_seconds(self) -> float:
        """Seconds from the beginning to the last call of `is_due`."""
        return self._now - self._begin

    def is_due(self) -> bool:
        """Return whether it is time to `show` a text."""
        if not self.is_on:
            return False
        self._now = time.monotonic()
        return self._now >= self._next

    def show_text(self, text: str) -> None:
        """Show this text now."""
        self._next = self._now + _INTERVAL_SECONDS
        self._stream.write(f"\r\x1b[K{text}")
        self._shown = True
        self._stream.flush()

    def erase_text(self) -> None:
        """Remove the line before text that stays."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


@contextmanager
def show_progress(command: str, streams: Sequence[Stream], *, prints: bool) -> Iterator[None]:
    """Show how much of these streams has been read, how fast, and the time left.

    `prints`: the command writes its output meanwhile; on a terminal that output shows progress
    itself, and no line is shown.
    """
    line = StatusLine(sys.stderr)
    if not line.is_on or (prints and sys.stdout.isatty()):
        yield
        return
    total, count = sum(stream.size for stream in streams), 0

    def add_bytes(size: int) -> None:
        nonlocal count
        count += size
        if line.is_due():
            line.show_text(f"rtit {command}: {describe_share(count, total, line.elapsed_seconds)}")

    sources = [stream.source for stream in streams]
    for stream in streams:
        stream.source = _ProgressSource(stream.source, add_bytes)
    try:
        yield
    finally:
        for stream, source in zip(streams, sources, strict=True):
            stream.source = source
        line.erase_text()


def describe_share(count: int, total: int, seconds: float) -> str:
    """Return share, rate and time left after `count` of `total` bytes of PT in some seconds.

    If `total` is less than `count`, it is unknown.
    """
    from datetime import timedelta

    rate = count / seconds
    if total < count:
        return f"{count:,} bytes of PT, {rate / 1e6:.1f} MB/s"
    left = timedelta(seconds=round((total - count) / rate))
    return f"{count / total:.0%} of {total:,} bytes of PT, {rate / 1e6:.1f} MB/s, {left} left"


def describe_recordings(count: int, total: int, seconds: float) -> str:
    """Return share, rate and time left after `count` of `total` recordings in some seconds."""
    from datetime import timedelta

    left = timedelta(seconds=round((total - count) * seconds / count))
    return f"{count:,} of {total:,} recordings, {count / seconds:.1f}/s, {left} left"


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
