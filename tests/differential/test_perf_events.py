"""What happened beside the instructions: perf lists the same as we, with the same values, threads
and times, in every mode that we write or read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from differential.modes import MODES, SAMPLED
from differential.oracles import perf
from kernel import recording
from kernel.machine import Machine
from rtit.trace import ErrorClass, Stream, Trace
from rtit.trace.events import (
    ControlEvent,
    Frequency,
    Interrupt,
    Mode,
    PtWrite,
    Sleep,
    TraceEvent,
    Wake,
)

OfMode = Callable[[str], Path]
Row = tuple[int, int, str]
"""tid, ns, what."""
LINE = re.compile(r" *(\d+) +(\d+)\.(\d{9}): +(\S+?): (.*)(.{16}) (.{16})$")
"""tid, seconds, nanoseconds, event, what it tells; where it led, and where it was."""

NOWHERE = ("psb", "cbr", "pwrx")
"""Events whose addresses are not told by packets: perf names the last it knew."""


def theirs(data: Path, itrace: str) -> list[Row]:
    """Addresses come last. A change of the interrupt flag is listed as one of the trace's event."""
    fields = ["--ns", f"--itrace={itrace}", "-F", "tid,time,event,ip,addr,synth"]
    try:
        listed = perf.script(data, fields)
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    found = []
    for line in listed.splitlines():
        if " dummy:u: " in line:  # a sample that has AUX data
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        tid, seconds, nanoseconds, name, told, to, at = (each.strip() for each in match.groups())
        words = [name, *told.split()]
        if name.startswith("intel_pt/"):
            words = ["flag", to]
        elif name not in NOWHERE:
            words += [to, at]
        found.append((int(tid), int(seconds + nanoseconds), " ".join(words)))
    return found


def _address(value: int | None) -> str:
    return f"{value or 0:x}"


def _power(event: TraceEvent) -> Iterator[str]:
    if isinstance(event, Sleep):
        at = _address(event.at)
        if event.hints is not None:
            yield f"mwait hints: {event.hints:#x} extensions: {event.extensions:#x} 0 {at}"
        state, sub = event.state, event.sub_state
        yield f"pwre hw: {int(event.hardware)} cstate: {state} sub-cstate: {sub} 0 {at}"
        yield f"exstop IP: {int(event.at is not None)} 0 {at}"
    elif isinstance(event, Wake):
        last, deepest = event.last, event.deepest
        names = ("interrupt", "timer deadline", "store", "hardware")
        reasons = sum(1 << names.index(each) for each in event.reasons)
        yield f"pwrx deepest cstate: {deepest} last cstate: {last} wake reason: {reasons:#x}"


def _interrupt(event: TraceEvent) -> Iterator[str]:
    if isinstance(event, Interrupt) and event.vector is not None:
        fault = f" PFA: {event.cr2:#x}" if event.cr2 is not None else ""
        at = f"{_address(event.to)} {_address(event.at)}"
        yield f"evt cfe: INTR IP: 1 vector: {event.vector}{fault} {at}"
    elif isinstance(event, ControlEvent):
        at = f"{_address(event.to)} {_address(event.at)}"
        yield f"evt cfe: {event.name} IP: 1 vector: {event.vector or 0} {at}"


def ours(trace: Trace, kind: str) -> list[Row]:
    """As `theirs`."""
    rows: list[tuple[Row, int]] = _flags(trace) if kind == "I" else []
    assert trace.clock is not None
    for stream in trace.threads:
        whose = _threads(stream)
        for event in stream.events():
            what: list[str] = []
            if kind == "p":
                what = [*_power(event)]
            elif kind == "I":
                what = [*_interrupt(event)]
            elif isinstance(event, PtWrite):
                what = [f"ptwrite IP: 1 payload: {event.value:#x} 0 {_address(event.at)}"]
            tid = whose[max(0, event.row - 1)] if whose else stream.tid
            time = trace.clock.to_nanoseconds(event.time)
            rows += [((tid, time, each), event.offset) for each in what]
    # of one thread on one CPU in their order, of several CPUs by time
    return [row for row, _ in sorted(rows, key=lambda each: (each[0][1], each[1]))]


def _flags(trace: Trace) -> list[tuple[Row, int]]:
    """Changes of the interrupt flag of each CPU; the first of a trace is from 0."""
    rows = []
    assert trace.clock is not None
    for stream in trace.streams:
        whose = _threads(stream)
        flag = False
        for event in stream.events():
            if isinstance(event, Mode) and event.interrupts is not flag:
                flag = event.interrupts
                tid = whose[min(event.row, len(whose) - 1)] if whose else stream.tid
                time = trace.clock.to_nanoseconds(event.time)
                rows.append(((tid, time, f"flag {_address(event.at)}"), event.offset))
    return rows


def _threads(stream: Stream) -> list[int]:
    """Whose each row is, where several share the stream."""
    return [int(tid) for part in stream.blocks() for tid in part.extra_columns.get("tid", ())]


def machine() -> Machine:
    """PTWRITE, power events, interrupts and page faults, of two threads that switch."""
    made = Machine(PTWEn=1, FUPonPTW=1, PwrEvtEn=1, EventEn=1)
    one, two = made.threads
    for thread in (two, one, two, one):
        made.syscall(calls="writes")
        made.interrupt(2)
        made.interrupt(1, cr2=0x7000_1234)
        made.syscall(thread)
        made.syscall(calls="idles")
        made.interrupt()
        made.syscall(calls="writes")
    return made


WITH_EVENTS = [mode for mode in MODES if "event" in mode]
EVENTS = "a machine with events"


@pytest.fixture(params=[*MODES, EVENTS])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data(mode: str, of_mode: OfMode, tmp_path: Path) -> Path:
    if mode == EVENTS:
        return recording.write(machine(), tmp_path / "perf.data")
    return of_mode(mode)


def test_ptwrite(mode: str, data: Path) -> None:
    listed = theirs(data, "w")
    with Trace(data) as trace:
        assert sorted(ours(trace, "w")) == sorted(listed)
    assert bool(listed) == (mode == EVENTS)


def test_power(mode: str, data: Path) -> None:
    """C-states; and where PSBs are, and frequencies, with their times."""
    listed = theirs(data, "p")
    told = [row for row in listed if not row[2].startswith(("psb", "cbr"))]
    with Trace(data) as trace:
        assert sorted(ours(trace, "p")) == sorted(told)
        psbs: list[tuple[int, int]] = []
        printed: set[int] = set()
        ratios: list[tuple[int, str]] = []
        for stream in trace.streams:
            psbs += psbs_of(trace, stream)
            printed |= times(trace, stream)
            ratios += [
                (each.time, f"cbr cbr: {each.ratio} freq: {each.ratio * 100} MHz (100%)")
                for each in stream.events()
                if isinstance(each, Frequency) and (mode != SAMPLED or not ratios)
            ]
    assert bool(told) == (mode == EVENTS)
    found = [(time, what.split()[-1]) for _, time, what in listed if what.startswith("psb")]
    places = sorted((time, int(at, 16)) for time, at in found)
    if mode == SAMPLED:  # whose places perf counts anew in each piece
        places, psbs = ([(time, 0) for time, _ in each] for each in (places, psbs))
    for (time, at), (own, offset) in zip(by_place(places), by_place(psbs), strict=True):
        assert at == offset
        # what perf guessed where user code begins stands until a packet says more
        assert time == own or (time > own and time in printed)
    assert sorted((time, what) for _, time, what in listed if what.startswith("cbr")) == sorted(
        ratios
    )


def psbs_of(trace: Trace, stream: Stream) -> Iterator[tuple[int, int]]:
    """Time of the PSB+ of each PSB, and its offset; perf counts from the first one on."""
    assert trace.clock is not None
    at = first = None
    for packet in stream.packets().rows():
        if packet.name == "PSB":
            first = packet.offset if first is None else first
            at = packet.offset - first
        elif packet.name == "TSC" and at is not None:
            yield trace.clock.to_nanoseconds(packet.fields["tsc"]), at
            at = None


def by_place(psbs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(psbs, key=lambda psb: psb[::-1])


def times(trace: Trace, stream: Stream) -> set[int]:
    """All that perf prints of instructions."""
    assert trace.clock is not None
    parts = (part.columns()["perf_time"] for part in stream.instructions(perf_time=True))
    return {time for part in parts for time in trace.clock.nanoseconds(part).tolist()}


def test_interrupts(mode: str, data: Path) -> None:
    """perf lets its clock go on by a rate between two packets; ours is a lower bound."""
    listed: dict[int, list[tuple[int, str]]] = {}
    for tid, time, what in theirs(data, "I"):
        listed.setdefault(tid, []).append((time, what))
    found: dict[int, list[tuple[int, str]]] = {}
    with Trace(data) as trace:
        for tid, time, what in ours(trace, "I"):
            found.setdefault(tid, []).append((time, what))
    assert found.keys() == listed.keys()
    assert bool(listed) == (mode in (EVENTS, *WITH_EVENTS))
    for tid, rows in listed.items():
        assert [what for _, what in found[tid]] == [what for _, what in rows]
        assert all(own <= time for (own, _), (time, _) in zip(found[tid], rows, strict=True))


def test_no_errors(mode: str, data: Path) -> None:
    try:
        assert perf.errors(data) == []
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    with Trace(data) as trace:
        causes = {span.cause for stream in trace.streams for span in stream.ledger() if span.is_gap}
    # before the first PSB of a sample
    assert causes <= {ErrorClass.INCOMPLETE} if mode == SAMPLED else not causes
