"""Counts executed code, per stream and per function, and lost data.

Decodes each stream, adds up instructions, branches and bytes, and collects from the coverage ledger
what is not in the counts: lost bytes, ambiguous positions, loops of unknown repetition count.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rtit.trace.tables.batch import ErrorClass
from rtit.views.spilled_lines import BoundedLines, SpilledLines

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """Counts of one stream: of a thread, or of a CPU."""

    title: str
    pid: int
    """-1 of a CPU."""
    cpu: int
    """-1 of a thread."""
    instructions: int
    branches: int
    """Conditional, indirect and return branches, and far transfers."""
    pt_bytes: int
    """Size of the stream; of a thread on a shared CPU, its part."""
    losses: BoundedLines
    """A sentence for each span of bytes that was not decoded."""
    unknown_loops: BoundedLines
    """A sentence for each loop without packets, whose iterations PT does not count."""
    exact_bytes: int
    thread_instructions: tuple[tuple[str, int], ...] = ()
    """Of a CPU with several threads: title and instructions of each thread, most first."""
    instructions_by_name: Counter[str] = field(default_factory=Counter)
    """Instructions by the name of the thread; "" if it is unknown."""
    ambiguous: tuple[int, int] = (0, 0)
    """Number of thread switches around which code may be of either thread, and its instructions."""
    unattributed: int | None = 0
    """Instructions of further loop iterations, which `instructions` has and no function; None if
    the recording does not show how many.
    """

    @property
    def bytes_per_1000(self) -> float:
        """Bytes of PT per 1000 instructions; 0 without instructions."""
        return 1000 * self.pt_bytes / self.instructions if self.instructions else 0.0


@dataclass(slots=True)
class RecordingStatistics:
    """Counts of a recording. `functions` counts instructions by (function, module)."""

    streams: list[StreamStatistics] = field(default_factory=list)
    functions: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def instructions(self) -> int:
        """Instructions of all streams."""
        return sum(each.instructions for each in self.streams)

    @property
    def has_gaps(self) -> bool:
        """Whether any bytes could not be decoded."""
        return any(each.losses for each in self.streams)

    @property
    def instructions_in_no_function(self) -> int | None:
        """Instructions that no function has, of all streams; None if the number is unknown."""
        found = [each.unattributed for each in self.streams]
        return None if None in found else sum(each or 0 for each in found)


def compute_statistics(
    trace: Trace, streams: list[Stream], max_lines: int | None = None
) -> RecordingStatistics:
    """Decode the streams and return their statistics.

    Keeps the first `max_lines` losses and loops of each stream; None: all.
    """
    result, spilled = RecordingStatistics(), SpilledLines()
    for stream in streams:
        result.streams.append(
            _stream_statistics(trace, stream, result.functions, spilled, max_lines)
        )
    return result


def _stream_statistics(
    trace: Trace,
    stream: Stream,
    functions: Counter[tuple[str, str]],
    spilled: SpilledLines,
    max_lines: int | None,
) -> StreamStatistics:
    for name, path, count in stream.instructions_by_function(trace.symbols):
        functions[name, path] += count
    by_thread = Counter[int]()
    if stream.has_several_threads:
        # Imports NumPy.
        from rtit.trace.threads.schedule import instructions_by_thread

        by_thread = instructions_by_thread(stream.blocks())
    counts = stream.counts()
    exact = 0
    causes: set[ErrorClass | None] = set()
    losses = BoundedLines(spilled, max_lines)
    for span in stream.spans():
        causes.add(span.cause)
        if span.is_gap:
            losses.append_line(str(span))
        elif span.kind == "exact":
            exact += span.end - span.start
    ambiguous = _count_ambiguous(stream) if ErrorClass.AMBIGUOUS_THREAD in causes else (0, 0)
    unknown_loops = BoundedLines(spilled, max_lines)
    unattributed: int | None = 0
    if ErrorClass.UNKNOWN_REPETITIONS in causes:
        from rtit.trace.tables.unknown_loops import (
            describe_loops,
            instructions_in_unknown_iterations,
        )

        unattributed = instructions_in_unknown_iterations(trace, stream, counts.instructions)
        for text in describe_loops(stream):
            unknown_loops.append_line(text)
    names: Counter[str] = Counter()
    for tid, count in (by_thread or {stream.tid: counts.instructions}).items():
        names[trace.comms.get(tid, "")] += count
    result = StreamStatistics(
        title=stream.title,
        pid=stream.pid,
        cpu=stream.cpu,
        instructions=counts.instructions + (unattributed or 0),
        branches=counts.branches,
        pt_bytes=stream.size - counts.elsewhere_bytes,
        losses=losses,
        unknown_loops=unknown_loops,
        exact_bytes=exact,
        thread_instructions=tuple(
            (_thread_title(trace, tid), count) for tid, count in by_thread.most_common()
        ),
        instructions_by_name=names,
        ambiguous=ambiguous,
        unattributed=unattributed,
    )
    stream.discard_decoder()  # frees the decoder; a recording may have thousands of streams
    return result


def _count_ambiguous(stream: Stream) -> tuple[int, int]:
    import numpy as np

    # spans are in order and disjoint
    begins, ends = array("Q"), array("Q")
    for end, begin in stream.errors_of_class(ErrorClass.AMBIGUOUS_THREAD):
        begins.append(begin)
        ends.append(end)
    first, last = np.asarray(begins), np.asarray(ends)
    instructions = 0
    for rows in stream.blocks():
        at = np.searchsorted(last, rows.offset, "left")
        inside = at < len(last)
        inside[inside] = first[at[inside]] < rows.offset[inside]
        instructions += int(rows.instructions[inside].sum())
    return len(last), instructions


def _thread_title(trace: Trace, tid: int) -> str:
    name = trace.comms.get(tid)
    return f"thread {tid if tid >= 0 else 'not known'}" + (f" ({name})" if name else "")
