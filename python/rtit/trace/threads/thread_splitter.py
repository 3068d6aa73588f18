"""Splits the stream of each CPU by thread, within a work limit.

To get one thread of a CPU, the decoder reads all packets of the CPU. The work therefore grows with
threads times packets. A CPU with more than `ALWAYS_SPLIT` threads is split only while this work
stays within `MAX_WORK`; beyond that, and where the caller asks for it, all its selected threads are
one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import UnsupportedError

if TYPE_CHECKING:
    from rtit.trace.stream import Stream
    from rtit.trace.tables.selection import Selection
    from rtit.trace.threads.schedule import ThreadId


ALWAYS_SPLIT = 16
"""A CPU with at most this many threads is always split."""
MAX_WORK = 1 << 26
"""Bytes of PT and of intervals to read for CPUs with more threads, for all CPUs together."""
MAX_FORCED_WORK = 1 << 32
MAX_FORCED_FACTOR = 1 << 8
"""A forced split fails beyond this many bytes, if they are also this many times the trace's size.
"""
_INTERVAL_BYTES = 8


class _SelectableThread(NamedTuple):
    """The properties of a thread that a selection tests."""

    pid: int
    tid: int
    cpu: int
    name: str | None
    title: str = ""


class ThreadSplitter:
    """Derives the streams of single threads. `names`: thread names by tid."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        # Keyed by the identity of the stream, which lives as long as its trace.
        self._executed: dict[int, list[ThreadId]] = {}
        self._streams: dict[tuple[int, int, int], Stream] = {}

    def split_by_thread(self, stream: Stream) -> list[Stream]:
        """One stream for each thread, without a limit."""
        return [self.stream_of_thread(stream, *thread) for thread in self._executed_threads(stream)]

    def select_threads(
        self,
        streams: Sequence[Stream],
        where: Selection | None,
        keeps_whole: Callable[[Stream], bool] = lambda _: False,
        *,
        joins_threads: Callable[[Stream], bool] = lambda _: False,
        always_split: bool = False,
    ) -> list[Stream]:
        """The streams of the threads that `where` selects; of all threads if it selects none.

        Streams for which `keeps_whole` is true stay unsplit. Where `joins_threads` is true, or the
        work limit is exceeded, all selected threads are one stream; `always_split` prevents that,
        and raises UnsupportedError if the work is excessive.
        """
        found: list[Stream] = []
        work_left, total_work = MAX_WORK, 0
        for stream in streams:
            if keeps_whole(stream):
                found.append(stream)
                continue
            threads = self._selected_threads(stream, where)
            # Few threads cost nothing here, so that no byte is read before it is needed.
            work = len(threads) * _estimate_work(stream) if len(threads) > ALWAYS_SPLIT else 0
            total_work += work
            is_joined = joins_threads(stream) and len(threads) > 1
            if (work <= work_left and not is_joined) or always_split:
                work_left -= work
                found += [self.stream_of_thread(stream, *thread) for thread in threads]
            else:
                has_all = len(threads) == len(self._executed_threads(stream))
                found.append(stream.for_threads(threads, self._names, has_all_threads=has_all))
        if (
            always_split
            and total_work > MAX_FORCED_WORK
            and total_work > MAX_FORCED_FACTOR * sum(map(_estimate_work, streams))
        ):
            raise UnsupportedError(
                f"decoding each of {len(found):,} threads separately would read "
                f"{total_work >> 30:,} GB: select some of them (--tid, --pid, --comm)"
            )
        return found or [each for stream in streams for each in self.split_by_thread(stream)]

    def _selected_threads(self, stream: Stream, where: Selection | None) -> list[ThreadId]:
        threads = self._executed_threads(stream)
        if where is None:
            return threads
        if not stream.has_several_threads:
            return threads if where.matches(stream) else []
        names = self._names
        return [
            each
            for each in threads
            if where.matches(_SelectableThread(*each, stream.cpu, names.get(each[1])))
        ]

    def _executed_threads(self, stream: Stream) -> list[ThreadId]:
        threads = self._executed.get(id(stream))
        if threads is None:
            threads = self._executed[id(stream)] = stream.executed_threads()
        return threads

    def stream_of_thread(self, stream: Stream, pid: int, tid: int) -> Stream:
        """Return the stream of one thread of a stream."""
        if not stream.has_several_threads and (pid, tid) == (stream.pid, stream.tid):
            return stream
        key = id(stream), pid, tid
        found = self._streams.get(key)
        if found is None:
            found = self._streams[key] = stream.for_thread(pid, tid, self._names)
        return found


def _estimate_work(stream: Stream) -> int:
    scope = stream.thread_scope
    intervals = len(scope.schedule.intervals) if scope is not None else 0
    return stream.size + _INTERVAL_BYTES * intervals
