"""perf lists the same events beside the instructions as rtit, with values, threads and times.

The test covers every mode that rtit writes or reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from differential.modes import MODES, SAMPLED_MODE
from differential.oracles import perf
from kernel import recording
from kernel.machine import Machine
from rtit.trace import ErrorClass, Stream, Trace
from rtit.trace.events import (
    ControlFlowEvent,
    CStateEntry,
    CStateExit,
    ExecutionModeChange,
    FrequencyChange,
    Interrupt,
    PtWrite,
    TraceEvent,
)

ModeFixture = Callable[[str], Path]
Row = tuple[int, int, str]
"""tid, ns, what."""
LINE = re.compile(r" *(\d+) +(\d+)\.(\d{9}): +(\S+?): (.*)(.{16}) (.{16})$")
"""tid, seconds, nanoseconds, event, details, target address, address."""

WITHOUT_ADDRESSES = ("psb", "cbr", "pwrx")
"""Events without addresses in their packets: perf prints the last known address."""


def events_from_perf(data: Path, itrace: str) -> list[Row]:
    """Return perf's events; addresses are the last words.

    A change of the interrupt flag appears as an event of the trace.
    """
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
        tid, seconds, nanoseconds, name, details, to, at = (each.strip() for each in match.groups())
        words = [name, *details.split()]
        if name.startswith("intel_pt/"):
            words = ["flag", to]
        elif name not in WITHOUT_ADDRESSES:
            words += [to, at]
        found.append((int(tid), int(seconds + nanoseconds), " ".join(words)))
    return found


def _address_text(value: int | None) -> str:
    return f"{value or 0:x}"


def _power_texts(event: TraceEvent) -> Iterator[str]:
    if isinstance(event, CStateEntry):
        at = _address_text(event.at)
        if event.hints is not None:
            yield f"mwait hints: {event.hints:#x} extensions: {event.extensions:#x} 0 {at}"
        state, sub = event.state, event.sub_state
        yield f"pwre hw: {int(event.hardware)} cstate: {state} sub-cstate: {sub} 0 {at}"
        yield f"exstop IP: {int(event.at is not None)} 0 {at}"
    elif isinstance(event, CStateExit):
        last, deepest = event.last, event.deepest
        names = ("interrupt", "timer deadline", "store", "hardware")
        reasons = sum(1 << names.index(each) for each in event.reasons)
        yield f"pwrx deepest cstate: {deepest} last cstate: {last} wake reason: {reasons:#x}"


def _interrupt_texts(event: TraceEvent) -> Iterator[str]:
    if isinstance(event, Interrupt) and event.vector is not None:
        fault = f" PFA: {event.cr2:#x}" if event.cr2 is not None else ""
        at = f"{_address_text(event.to)} {_address_text(event.at)}"
        yield f"evt cfe: INTR IP: 1 vector: {event.vector}{fault} {at}"
    elif isinstance(event, ControlFlowEvent):
        at = f"{_address_text(event.to)} {_address_text(event.at)}"
        yield f"evt cfe: {event.name} IP: 1 vector: {event.vector or 0} {at}"


def events_from_rtit(trace: Trace, kind: str) -> list[Row]:
    """Return the events in the form of `events_from_perf`."""
    rows: list[tuple[Row, int]] = _flag_changes(trace) if kind == "I" else []
    assert trace.clock is not None
    for stream in trace.threads:
        tids = _threads_of_rows(stream)
        for event in stream.events():
            what: list[str] = []
            if kind == "p":
                what = [*_power_texts(event)]
            elif kind == "I":
                what = [*_interrupt_texts(event)]
            elif isinstance(event, PtWrite):
                what = [f"ptwrite IP: 1 payload: {event.value:#x} 0 {_address_text(event.at)}"]
            tid = tids[max(0, event.row - 1)] if tids else stream.tid
            time = trace.clock.to_nanoseconds(event.time)
            rows += [((tid, time, each), event.offset) for each in what]
    # in the order of the stream on one CPU, by time across CPUs
    return [row for row, _ in sorted(rows, key=lambda each: (each[0][1], each[1]))]


def _flag_changes(trace: Trace) -> list[tuple[Row, int]]:
    """Return the changes of the interrupt flag on each CPU, which begins as 0."""
    rows = []
    assert trace.clock is not None
    for stream in trace.streams:
        tids = _threads_of_rows(stream)
        flag = False
        for event in stream.events():
            if isinstance(event, ExecutionModeChange) and event.interrupts is not flag:
                flag = event.interrupts
                tid = tids[min(event.row, len(tids) - 1)] if tids else stream.tid
                time = trace.clock.to_nanoseconds(event.time)
                rows.append(((tid, time, f"flag {_address_text(event.at)}"), event.offset))
    return rows


def _threads_of_rows(stream: Stream) -> list[int]:
    """Return the thread of each row, if several threads share the stream."""
    return [int(tid) for part in stream.blocks() for tid in part.extra_columns.get("tid", ())]


def simulate_events() -> Machine:
    """Simulate PTWRITE, power events, interrupts and page faults of two threads."""
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


MODES_WITH_EVENTS = [mode for mode in MODES if "event" in mode]
SIMULATED = "a machine with events"


@pytest.fixture(params=[*MODES, SIMULATED])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data(mode: str, recording_of_mode: ModeFixture, tmp_path: Path) -> Path:
    if mode == SIMULATED:
        return recording.write(simulate_events(), tmp_path / "perf.data")
    return recording_of_mode(mode)


def test_ptwrite_events_equal_those_of_perf(mode: str, data: Path) -> None:
    listed = events_from_perf(data, "w")
    with Trace(data) as trace:
        assert sorted(events_from_rtit(trace, "w")) == sorted(listed)
    assert bool(listed) == (mode == SIMULATED)


def test_power_events_equal_those_of_perf(mode: str, data: Path) -> None:
    """The power events are C-states; PSBs and frequencies are compared with their times,
    too.
    """
    listed = events_from_perf(data, "p")
    details = [row for row in listed if not row[2].startswith(("psb", "cbr"))]
    with Trace(data) as trace:
        assert sorted(events_from_rtit(trace, "p")) == sorted(details)
        psbs: list[tuple[int, int]] = []
        ratios: list[tuple[int, str]] = []
        for stream in trace.streams:
            psbs += psb_times(trace, stream)
            ratios += [
                (each.time, f"cbr cbr: {each.ratio} freq: {each.ratio * 100} MHz (100%)")
                for each in stream.events()
                if isinstance(each, FrequencyChange) and (mode != SAMPLED_MODE or not ratios)
            ]
    assert bool(details) == (mode == SIMULATED)
    found = [(time, what.split()[-1]) for _, time, what in listed if what.startswith("psb")]
    perf_psbs = sorted((time, int(at, 16)) for time, at in found)
    if mode == SAMPLED_MODE:  # perf counts offsets from the start of each sample
        perf_psbs, psbs = ([(time, 0) for time, _ in each] for each in (perf_psbs, psbs))
    printed = perf.script(data, ["--itrace=i0ns", "--ns", "-F", "time"]).replace(".", "")
    instruction_times = {int(time.rstrip(":")) for time in printed.split()}
    for (time, at), (rtit_time, offset) in zip(by_offset(perf_psbs), by_offset(psbs), strict=True):
        assert at == offset
        # where user code begins, perf keeps its guess until the next packet
        assert time == rtit_time or (time > rtit_time and time in instruction_times)
    assert sorted((time, what) for _, time, what in listed if what.startswith("cbr")) == sorted(
        ratios
    )


def psb_times(trace: Trace, stream: Stream) -> Iterator[tuple[int, int]]:
    """Yield time and offset of each PSB; perf counts offsets from the first one."""
    assert trace.clock is not None
    at = first = None
    for packet in stream.packets().rows():
        if packet.name == "PSB":
            first = packet.offset if first is None else first
            at = packet.offset - first
        elif packet.name == "TSC" and at is not None:
            yield trace.clock.to_nanoseconds(packet.fields["tsc"]), at
            at = None


def by_offset(psbs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(psbs, key=lambda psb: psb[::-1])


def test_interrupt_events_equal_those_of_perf(mode: str, data: Path) -> None:
    """perf extrapolates its clock between two packets; rtit's time is a lower bound."""
    listed: dict[int, list[tuple[int, str]]] = {}
    for tid, time, what in events_from_perf(data, "I"):
        listed.setdefault(tid, []).append((time, what))
    found: dict[int, list[tuple[int, str]]] = {}
    with Trace(data) as trace:
        for tid, time, what in events_from_rtit(trace, "I"):
            found.setdefault(tid, []).append((time, what))
    assert found.keys() == listed.keys()
    assert bool(listed) == (mode in (SIMULATED, *MODES_WITH_EVENTS))
    for tid, rows in listed.items():
        assert [what for _, what in found[tid]] == [what for _, what in rows]
        assert all(
            rtit_time <= time for (rtit_time, _), (time, _) in zip(found[tid], rows, strict=True)
        )


def test_neither_decoder_reports_errors(mode: str, data: Path) -> None:
    try:
        assert perf.errors(data) == []
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    with Trace(data) as trace:
        causes = {span.cause for stream in trace.streams for span in stream.ledger() if span.is_gap}
    # bytes before the first PSB of a sample
    assert causes <= {ErrorClass.INCOMPLETE} if mode == SAMPLED_MODE else not causes
