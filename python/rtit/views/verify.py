"""Is the decoded path the executed one? A recording against the truth that the tracer wrote."""

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

_LONG = 4096
"""A run of more instructions than this stands for many."""

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thread's comparison.

    `instructions` and `runs` were compared and found equal; `reason` says why not `identical`.
    `shortfall` is how many instructions a recording that was cut short ends before the truth does
    (or after it, if negative). `part`: what a snapshot holds of the path, its "end" or "a part".
    `unchecked` instructions at the end lie where no hash of the truth tells of them. `repeated`:
    instructions of the truth in whole rounds of loops without packets, of which PT cannot tell how
    often they went round (the ledger says where: REPEATS_UNKNOWN); they count as equal.
    """

    tid: int
    pid: int
    identical: bool
    instructions: int
    runs: int
    reason: str = ""
    shortfall: int = 0
    part: str = ""
    unchecked: int = 0
    repeated: int = 0


def verify(
    trace: Trace,
    truth_path: str,
    ranges: Callable[[int], tuple[Ranges, Ranges]] = lambda _pid: ((), ()),
    raw_tid: int | None = None,
) -> list[Verdict]:
    """Compare every thread of a recording with a truth file. Raw PT is compared with the thread
    `raw_tid`, which need not be given if there is one alone.

    `ranges(pid)` gives the FilterEn and the TraceStop ranges that the recording was made with. A
    recorder that was killed, or that stopped at a size, leaves a recording and a truth that may end
    at different instructions: there the shorter must be the beginning of the longer. The last
    snapshot of a thread that has ended must be the end of its path, instruction for instruction;
    any other one must be found in it. Raises TruthError, PerfDataError, UsageError.
    """
    truth = _core.TruthFile(truth_path)
    threads = truth.threads()
    cut = not truth.complete or trace.incomplete is not None or "stopped" in trace.facts
    if trace.is_snapshot:
        return verify_snapshots(trace, truth, ranges, cut=cut)
    streams = _of_threads(trace)
    if _NOBODY in streams:
        threads = [_meant(threads, raw_tid)]
        streams[threads[0][0]] = streams.pop(_NOBODY)
    verdicts = []
    for tid, pid, instructions, _status, _ended in threads:
        filters, stops = ranges(pid)
        own = streams.pop(tid, [])
        if not own:
            outcome = truth.compare(
                tid, iter(()), filters=list(filters), stops=list(stops), prefix=cut
            )
            if not outcome["identical"]:
                reason = (
                    f"the recording has no trace of it, the truth {instructions:,} instructions"
                )
                verdicts.append(Verdict(tid, pid, False, 0, 0, reason))
            continue
        outcome = truth.compare(
            tid, _runs(own), filters=list(filters), stops=list(stops), prefix=cut
        )
        verdicts.append(_verdict(tid, pid, outcome, own))
        for stream in own:
            stream.forget()
    for tid, own in streams.items():
        if any(stream.counts().instructions for stream in own):
            reason = "the truth knows no such thread"
            verdicts.append(Verdict(tid, own[0].pid, False, 0, 0, reason))
    return verdicts


def _of_threads(trace: Trace) -> dict[int, list[Stream]]:
    found: dict[int, list[Stream]] = {}
    for stream in trace.by_thread(apart=True):
        found.setdefault(stream.tid, []).append(stream)
    return found


def _runs(streams: list[Stream]) -> Iterator[_core.Columns]:
    """What a thread ran on one CPU after the other: a turn is on one of them."""
    parts = [stream.timed_runs() for stream in streams]
    return (columns for _, columns in merge(*parts, key=itemgetter(0)))


_Thread = tuple[int, int, int, int | None, bool]
"""As a truth file has it: tid, pid, instructions, status, whether it has ended."""

_NOBODY = -1
"""The thread of raw PT."""


def _meant(threads: list[_Thread], tid: int | None) -> _Thread:
    """The one with this tid, or the only one."""
    found = [each for each in threads if tid in (None, each[0])]
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(each[0]) for each in threads)
    raise UsageError(f"the truth has the threads {names}: --tid says of which the packets are")


def verify_snapshots(
    trace: Trace,
    truth: _core.TruthFile,
    ranges: Callable[[int], tuple[Ranges, Ranges]],
    *,
    cut: bool,
) -> list[Verdict]:
    """`verify` for a recording of snapshots."""
    of_thread = _of_threads(trace)
    verdicts = []
    for tid, pid, instructions, _status, ended in truth.threads():
        filters, stops = (list(each) for each in ranges(pid))
        streams = of_thread.pop(tid, [])
        # A thread that has ended may have made room for others, of which the recording tells.
        dropped = "dropped" in trace.facts
        if not streams and instructions and not (cut or dropped or filters or stops):
            verdicts.append(Verdict(tid, pid, False, 0, 0, "the recording has no trace of it"))
        for number, stream in enumerate(streams, 1):
            decoded = stream.counts().instructions
            outcome = None
            if number == len(streams) and ended and not cut:
                whole = truth.instructions(tid, filters=filters, stops=stops)
                behind = max(0, whole - decoded)
                outcome = truth.compare(
                    tid, stream.runs(), filters=filters, stops=stops, behind=behind
                )
            if outcome is not None and (outcome["identical"] or not dropped):
                verdicts.append(_verdict(tid, pid, outcome, [stream], "end"))
            else:
                outcome = truth.find(tid, stream.runs(), filters=filters, stops=stops)
                verdicts.append(_verdict(tid, pid, outcome, [stream], "a part"))
            stream.forget()
    for tid, streams in of_thread.items():
        reason = "the truth knows no such thread"
        verdicts.append(Verdict(tid, streams[0].pid, False, 0, 0, reason))
    return verdicts


def _verdict(
    tid: int, pid: int, outcome: _core.Compared, streams: list[Stream], part: str = ""
) -> Verdict:
    if not outcome["identical"] and "reason" not in outcome:
        return Verdict(tid, pid, False, 0, 0, "no part of what was executed is what it decodes to")
    instructions = outcome["instructions"]
    lost = next((span for stream in streams for span in stream.spans() if span.is_gap), None)
    if not outcome["identical"]:
        reason = (
            f"{outcome['reason']} after {instructions:,} equal instructions: "
            f"executed {_run(outcome['truth'])}, decoded {_run(outcome['decoded'])}"
        )
        until = outcome["until"]
        if until is not None and until - instructions > _LONG:
            first, last = instructions >> 20, until - 1 >> 20
            windows = f"window {first}" if first == last else f"windows {first} and {last}"
            reason += (
                f"; that is in {windows} of 2^20 instructions, and only a truth recorded with "
                "--truth-format runs says where"
            )
        if lost is not None:
            reason += f"; {lost}"
        return Verdict(tid, pid, False, instructions, 0, reason)
    runs = outcome["runs"]
    if lost is not None:
        return Verdict(tid, pid, False, instructions, runs, f"a gap: {lost}")
    shortfall = outcome["shortfall"] - outcome["excess"]
    return Verdict(
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


def _run(run: tuple[int, int] | None) -> str:
    if run is None:
        return "nothing more"
    start, count = run
    return f"{count} instruction{'s' if count != 1 else ''} from {start:#x}"
