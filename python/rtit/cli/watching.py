"""How far a reading verb has come, on stderr if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rtit.cli.status import StatusLine

if TYPE_CHECKING:
    from rtit.trace import Source, Stream

_STEP = 1 << 16


@contextmanager
def watched(verb: str, streams: Sequence[Stream], *, prints: bool) -> Iterator[None]:
    """Within it, the bytes of PT that are taken from these streams are counted and shown.

    `prints`: the verb writes its output meanwhile; if that goes to a terminal, it is what shows how
    far it is, and no line stands in its way.
    """
    line = StatusLine(sys.stderr)
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
        yield
        return
    count = _Count(verb, sum(stream.size for stream in streams), line)
    sources = [stream.source for stream in streams]
    for stream in streams:
        stream.source = _Watched(stream.source, count)
    try:
        yield
    finally:
        for stream, source in zip(streams, sources, strict=True):
            stream.source = source
        line.clear()


class _Count:
    """Bytes taken of all streams. One that is read again counts once."""

    def __init__(self, verb: str, whole: int, line: StatusLine) -> None:
        self._verb = verb
        self._whole = whole
        self._line = line
        self._taken = 0

    def add(self, size: int) -> None:
        self._taken += size
        if self._line.due():
            share = self._taken / self._whole if self._whole else 1
            self._line.show(
                f"rtit {self._verb}: {share:.0%} of {self._whole:,} bytes of PT, "
                f"{self._line.seconds:.0f} s"
            )


class _Watched:
    """A source, with what is taken of it counted."""

    def __init__(self, source: Source, count: _Count) -> None:
        self._source = source
        self._count = count
        self._furthest = 0

    @property
    def size(self) -> int:
        return self._source.size

    def parts(self) -> Iterator[memoryview]:
        at = 0
        for part in self._source.parts():
            for start in range(0, len(part), _STEP):
                step = part[start : start + _STEP]
                at += len(step)
                self._count.add(max(0, at - self._furthest))
                self._furthest = max(self._furthest, at)
                yield step
