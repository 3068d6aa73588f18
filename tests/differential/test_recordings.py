"""Stock perf and libipt decode rtit's recordings as rtit does, and as executed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from differential.oracles import libipt, perf
from differential.oracles.raw import Section
from rtit.capture.ptrace.session import replay_events
from rtit.cli.main import main
from rtit.trace import Trace
from support.recordings import RecordedProgram, Recorder

ProgramBuilder = Callable[[str], Path]


def decoded_ips(data: Path) -> dict[int, list[int]]:
    with Trace(data) as trace:
        return {
            stream.tid: [int(ip) for part in stream.instructions() for ip in part.ip]
            for stream in trace.streams
        }


def verified_ips(live: RecordedProgram, data: Path) -> dict[int, list[int]]:
    """Return the decoded addresses of each thread after comparing them with the truth."""
    assert main(["verify", str(data), "--truth", str(live.truth)]) == 0
    return decoded_ips(data)


PROGRAMS = ["pointers", "recursion", "returns", "signal_nested", "segv_caught", "threads", "rep"]
EVENTS = ["intel_pt//u", "intel_pt/cyc,psb_period=0/u", "intel_pt/noretcomp,mtc_period=0/u"]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("event", EVENTS)
def test_perf_decodes_as_executed(
    name: str, event: str, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    live = record([program(name)])
    data = tmp_path / "perf.data"
    replay_events(live.log, data, event=event)
    try:
        theirs, errors = perf.instructions(data)
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    assert errors == []
    assert theirs == verified_ips(live, data)


@pytest.mark.slow  # test_large_recordings.py has dynamic programs
def test_perf_reads_a_dynamic_program(record: Recorder) -> None:
    live = record(["/bin/echo", "hello"])
    try:
        theirs, errors = perf.instructions(live.data)
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    assert errors == []
    assert theirs == verified_ips(live, live.data)


def mapped_sections(data: Path, tid: int) -> list[Section]:
    with Trace(data) as trace:
        return [
            Section(Path(each.path), each.offset, each.end - each.start, each.start)
            for each in trace.images.mappings(tid)
            if each.path.startswith("/")
        ]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("event", ["intel_pt/noretcomp/u", "intel_pt/noretcomp,cyc,psb_period=0/u"])
def test_libipt_decodes_as_executed(
    name: str, event: str, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    # Without return compression, since libipt's return stack differs where returns mismatch calls.
    live = record([program(name)])
    data = tmp_path / "perf.data"
    replay_events(live.log, data, event=event)
    expected = verified_ips(live, data)
    with Trace(data) as trace:
        for stream in trace.streams:
            try:
                theirs = libipt.decode(stream.read(), mapped_sections(data, stream.tid))
            except libipt.LibiptMissingError as error:
                pytest.skip(str(error))
            assert [each for each in theirs.errors if each[0] != "eos"] == []
            assert theirs.ips == expected[stream.tid]


@pytest.mark.parametrize("name", ["recursion", pytest.param("echo", marks=pytest.mark.slow)])
def test_listing_equals_that_of_perf_script(
    name: str, program: ProgramBuilder, record: Recorder, capfd: pytest.CaptureFixture[str]
) -> None:
    live = record(["/bin/echo", "hello"] if name == "echo" else [program(name)])
    try:
        theirs = perf.script(live.data, ["--itrace=i0ns", "-F", "tid,ip"])
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    assert main(["instructions", "--fields", "tid,ip", str(live.data)]) == 0
    decoded_ips = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert decoded_ips == [line.split() for line in theirs.splitlines()]
