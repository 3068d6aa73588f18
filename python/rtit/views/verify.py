"""Compares a recording with the truth file that the recorder wrote.

Each thread's decoded runs must be the executed ones, instruction for instruction. Native code
(`_core.TruthFile`) compares; this module chooses streams and states the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING

from rtit import _core
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace

_LONG_RUN = 4096
"""A difference within more instructions than this is located by windows only."""

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ThreadVerdict:
    """The result of comparing one thread."""

    tid: int
    pid: int
    identical: bool
    """Whether the decoded path is the executed one, as far as both go."""
    instructions: int
    """Instructions that were compared and are equal."""
    runs: int
    """Instruction runs that were compared and are equal."""
    reason: str = ""
    """Why the paths are not identical; "" if they are."""
    shortfall: int = 0
    """Instructions by which a truncated recording ends before the truth; negative: after it."""
    part: str = ""
    """Of a snapshot: whether it holds the "end" or "a part" of the path."""
    unchecked: int = 0
    """Instructions at the end that no hash of the truth covers."""
    repeated: int = 0
    """Instructions of whole iterations of loops without packets, which PT does not count (cause
    UNKNOWN_REPETITIONS in the ledger). They count as equal.
    """


def verify_threads(
    trace: Trace,
    truth_path: str,
    ranges: Callable[[int], tuple[Ranges, Ranges]] = lambda _pid: ((), ()),
    raw_tid: int | None = None,
) -> list[ThreadVerdict]:
    """Compare every thread of a recording with a truth file, and return a verdict each.

    `ranges(pid)` returns the FilterEn and the TraceStop ranges of the recording. Raw PT is compared
    with the thread `raw_tid`, which is optional if the truth has one thread.

    If the recorder was killed or stopped at a size, recording and truth may end at different
    instructions; the shorter one must be a prefix of the longer. The last snapshot of a thread that
    has ended must be the end of its path; any other snapshot must occur in the path. Raises
    TruthError, PerfDataError, UsageError.
    """
    truth = _core.TruthFile(truth_path)
    threads = truth.threads()
    may_be_cut = not truth.complete or trace.incomplete is not None or "stopped" in trace.facts
    if trace.is_snapshot:
        return verify_snapshots(trace, truth, ranges, may_be_cut=may_be_cut)
    streams = _streams_by_thread(trace)
    if _RAW_TID in streams:
        threads = [_choose_thread(threads, raw_tid)]
        streams[threads[0][0]] = streams.pop(_RAW_TID)
    verdicts = []
    for tid, pid, instructions, _status, _ended in threads:
        filters, stops = ranges(pid)
        thread_streams = streams.pop(tid, [])
        runs = _merge_runs(thread_streams)
        outcome = truth.compare(
            tid, runs, filters=list(filters), stops=list(stops), prefix=may_be_cut
        )
        if thread_streams:
            verdicts.append(_verdict_of_thread(tid, pid, outcome, thread_streams))
        elif not outcome["identical"]:
            reason = (
                "the recording has no trace of this thread, but the truth file has "
                f"{instructions:,} instructions"
            )
            verdicts.append(ThreadVerdict(tid, pid, False, 0, 0, reason))
        for stream in thread_streams:
            stream.discard_decoder()
    for tid, thread_streams in streams.items():
        if any(stream.counts().instructions for stream in thread_streams):
            reason = "the truth file has no such thread"
            verdicts.append(ThreadVerdict(tid, thread_streams[0].pid, False, 0, 0, reason))
    return verdicts


def _streams_by_thread(trace: Trace) -> dict[int, list[Stream]]:
    found: dict[int, list[Stream]] = {}
    if "system" in trace.facts:
        # The truth file has one path for each processor.
        for stream in trace.streams:
            found.setdefault(stream.cpu, []).append(stream)
        return found
    for stream in trace.by_thread(always_split=True):
        found.setdefault(stream.tid, []).append(stream)
    return found


def _merge_runs(streams: list[Stream]) -> Iterator[_core.RunColumns]:
    """Return the runs of a thread in order of time, from its streams of several CPUs."""
    parts = [stream.runs_with_start() for stream in streams]
    return (columns for _, columns in merge(*parts, key=itemgetter(0)))


_TruthThread = tuple[int, int, int, int | None, bool]
"""Thread of a truth file: tid, pid, instructions, exit status, whether it has ended."""

_RAW_TID = -1
"""Thread id of raw PT."""


def _choose_thread(threads: list[_TruthThread], tid: int | None) -> _TruthThread:
    """Return the thread `tid` of the truth, or its only thread."""
    found = [each for each in threads if tid in (None, each[0])]
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(each[0]) for each in threads)
    raise UsageError(
        f"the truth file has the threads {names}: use --tid to name the thread of the packets"
    )


def verify_snapshots(
    trace: Trace,
    truth: _core.TruthFile,
    ranges: Callable[[int], tuple[Ranges, Ranges]],
    *,
    may_be_cut: bool,
) -> list[ThreadVerdict]:
    """Compare a recording of snapshots with a truth file, as `verify` does."""
    by_thread = _streams_by_thread(trace)
    verdicts = []
    for tid, pid, instructions, _status, ended in truth.threads():
        filters, stops = (list(each) for each in ranges(pid))
        streams = by_thread.pop(tid, [])
        # The snapshots of an ended thread may have been dropped to make room; facts record that.
        dropped = "dropped" in trace.facts
        if not streams and instructions and not (may_be_cut or dropped or filters or stops):
            verdicts.append(
                ThreadVerdict(tid, pid, False, 0, 0, "the recording has no trace of it")
            )
        for number, stream in enumerate(streams, 1):
            decoded = stream.counts().instructions
            outcome = None
            if number == len(streams) and ended and not may_be_cut:
                total = truth.instructions(tid, filters=filters, stops=stops)
                skipped = max(0, total - decoded)
                outcome = truth.compare(
                    tid, stream.runs(), filters=filters, stops=stops, skip=skipped
                )
            if outcome is not None and (outcome["identical"] or not dropped):
                verdicts.append(_verdict_of_thread(tid, pid, outcome, [stream], "end"))
            else:
                outcome = truth.find(tid, stream.runs(), filters=filters, stops=stops)
                verdicts.append(_verdict_of_thread(tid, pid, outcome, [stream], "a part"))
            stream.discard_decoder()
    for tid, streams in by_thread.items():
        reason = "the truth file has no such thread"
        verdicts.append(ThreadVerdict(tid, streams[0].pid, False, 0, 0, reason))
    return verdicts


def _verdict_of_thread(
    tid: int, pid: int, outcome: _core.Comparison, streams: list[Stream], part: str = ""
) -> ThreadVerdict:
    if not outcome["identical"] and "reason" not in outcome:
        return ThreadVerdict(
            tid, pid, False, 0, 0, "the decoded path occurs nowhere in the executed path"
        )
    instructions = outcome["instructions"]
    lost = next((span for stream in streams for span in stream.spans() if span.is_gap), None)
    if not outcome["identical"]:
        reason = (
            f"{outcome['reason']} after {instructions:,} equal instructions: "
            f"executed {_describe_run(outcome['truth'])}, "
            f"decoded {_describe_run(outcome['decoded'])}"
        )
        until = outcome["until"]
        if until is not None and until - instructions > _LONG_RUN:
            first, last = instructions >> 20, until - 1 >> 20
            windows = f"window {first}" if first == last else f"windows {first} and {last}"
            reason += (
                f"; the difference is in {windows} of 2^20 instructions; a truth file recorded "
                "with --truth-format runs shows the exact place"
            )
        if lost is not None:
            reason += f"; {lost}"
        return ThreadVerdict(tid, pid, False, instructions, 0, reason)
    runs = outcome["runs"]
    if lost is not None:
        return ThreadVerdict(tid, pid, False, instructions, runs, f"a gap: {lost}")
    shortfall = outcome["shortfall"] - outcome["excess"]
    return ThreadVerdict(
        tid,
        pid,
        True,
        instructions,
        runs,
        shortfall=shortfall,
        part=part,
        unchecked=outcome["unchecked"],
        repeated=outcome["repeated"],
    )


def _describe_run(run: tuple[int, int] | None) -> str:
    if run is None:
        return "nothing more"
    start, count = run
    return f"{count} instruction{'s' if count != 1 else ''} from {start:#x}"
