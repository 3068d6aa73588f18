"""Is the decoded path the executed one? A recording against the truth that the tracer wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtit import _core

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thread's comparison.

    `instructions` and `runs` were compared and found equal; `reason` says why not `identical`.
    `shortfall` is how many instructions a killed recording's path ends before the truth does (or
    after it, if negative).
    """

    tid: int
    pid: int
    identical: bool
    instructions: int
    runs: int
    reason: str = ""
    shortfall: int = 0


def verify(
    trace: Trace,
    truth_path: str,
    ranges: Callable[[int], tuple[Ranges, Ranges]] = lambda _pid: ((), ()),
) -> list[Verdict]:
    """Compare every thread of a recording with a truth file.

    `ranges(pid)` gives the FilterEn and the TraceStop ranges that the recording was made with. A
    recorder that was killed leaves a recording and a truth that may end at different instructions:
    there the shorter must be the beginning of the longer. Raises TruthError, PerfDataError.
    """
    truth = _core.TruthFile(truth_path)
    threads = truth.threads()
    cut = not truth.complete or trace.incomplete is not None
    streams = {stream.tid: stream for stream in trace.streams}
    verdicts = []
    for tid, pid, instructions, _status, _ended in threads:
        filters, stops = ranges(pid)
        stream = streams.pop(tid, None)
        if stream is None:
            if instructions and not (cut or filters or stops):
                reason = (
                    f"the recording has no trace of it, the truth {instructions:,} instructions"
                )
                verdicts.append(Verdict(tid, pid, False, 0, 0, reason))
            continue
        outcome = truth.compare(
            tid, stream.runs(), filters=list(filters), stops=list(stops), prefix=cut
        )
        verdicts.append(_verdict(tid, pid, outcome, stream))
    for tid, stream in streams.items():
        if stream.flow().count()["instructions"]:
            reason = "the truth knows no such thread"
            verdicts.append(Verdict(tid, stream.pid, False, 0, 0, reason))
    return verdicts


def _verdict(tid: int, pid: int, outcome: _core.Compared, stream: Stream) -> Verdict:
    instructions = outcome["instructions"]
    lost = [span for span in stream.ledger() if span.kind != "exact"]
    if not outcome["identical"]:
        reason = (
            f"{outcome['reason']} after {instructions:,} equal instructions: "
            f"executed {_run(outcome['truth'])}, decoded {_run(outcome['decoded'])}"
        )
        if lost:
            reason += f"; {lost[0]}"
        return Verdict(tid, pid, False, instructions, 0, reason)
    runs = outcome["runs"]
    if lost:
        return Verdict(tid, pid, False, instructions, runs, f"a gap: {lost[0]}")
    shortfall = outcome["shortfall"] - outcome["excess"]
    return Verdict(tid, pid, True, instructions, runs, shortfall=shortfall)


def _run(run: tuple[int, int] | None) -> str:
    if run is None:
        return "nothing more"
    start, count = run
    return f"{count} instruction{'s' if count != 1 else ''} from {start:#x}"
