"""The streams of CPUs apart by thread, as far as that is no work without end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import UnsupportedError

if TYPE_CHECKING:
    from rtit.trace.stream import Stream
    from rtit.trace.tables.selection import Selection


FEW = 16
"""Threads of a CPU that are always apart."""
WORK = 1 << 26
"""Bytes of PT and of turns that are gone over for more threads than that, of all CPUs together."""
MOST_WORK = 1 << 32
MOST_TIMES = 1 << 8
"""So many bytes are gone over for threads that are to be apart whatever that takes, or so often as
many as there are.
"""
_TURN = 8


class _Thread(NamedTuple):
    """As far as a selection looks at it."""

    pid: int
    tid: int
    cpu: int
    name: str | None
    title: str = ""


class Threads:
    """What each thread did. That takes going over all packets of its CPU, so that work grows with
    threads times packets: where a CPU has more than `FEW`, and going over what it has for each of
    them is more than what is left of `WORK`, they are told together, of one stream.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        # by the stream's identity: it lives as long as the recording
        self._ran: dict[int, list[tuple[int, int]]] = {}
        self._found: dict[tuple[int, int, int], Stream] = {}

    def apart(self, stream: Stream) -> list[Stream]:
        """Each thread of a stream by itself."""
        return [self._one(stream, *thread) for thread in self._who(stream)]

    def within(
        self,
        streams: Sequence[Stream],
        where: Selection | None,
        is_whole: Callable[[Stream], bool] = lambda _: False,
        *,
        apart: bool = False,
    ) -> list[Stream]:
        """What threads that `where` takes did in these streams, in those that are whole all;
        `apart`: each by itself. All threads there are if it takes none. Raises UnsupportedError
        where that is too much.
        """
        found: list[Stream] = []
        left, whole = WORK, 0
        for stream in streams:
            if is_whole(stream):
                found.append(stream)
                continue
            wanted = self._wanted(stream, where)
            # of few nothing is read before it is asked for
            work = len(wanted) * _size(stream) if len(wanted) > FEW else 0
            whole += work
            if work <= left or apart:
                left -= work
                found += [self._one(stream, *thread) for thread in wanted]
            else:
                found.append(stream.of_threads(wanted, self._names))
        if apart and whole > MOST_WORK and whole > MOST_TIMES * sum(map(_size, streams)):
            raise UnsupportedError(
                f"to follow each of {len(found):,} threads by itself {whole >> 30:,} GB would have "
                "to be gone over: name some of them (--tid, --pid, --comm)"
            )
        return found or [each for stream in streams for each in self.apart(stream)]

    def _wanted(self, stream: Stream, where: Selection | None) -> list[tuple[int, int]]:
        who = self._who(stream)
        if where is None:
            return who
        names = self._names
        if not stream.has_several:
            return who if where.takes(stream) else []
        return [each for each in who if where.takes(_Thread(*each, stream.cpu, names.get(each[1])))]

    def _who(self, stream: Stream) -> list[tuple[int, int]]:
        known = self._ran.get(id(stream))
        if known is None:
            known = self._ran[id(stream)] = stream.ran()
        return known

    def _one(self, stream: Stream, pid: int, tid: int) -> Stream:
        if not stream.has_several and (pid, tid) == (stream.pid, stream.tid):
            return stream
        key = id(stream), pid, tid
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = stream.of_thread(pid, tid, self._names)
        return found


def _size(stream: Stream) -> int:
    turns = stream.shares.turns if stream.shares is not None else ()
    return stream.size + _TURN * len(turns)
