"""The time model: N instructions at CPI c and core clock f take N * c / f, in both back
ends.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from differential.oracles import perf
from rtit._core import TruthFile
from rtit.capture.backends import start_recording
from rtit.capture.options import describe_time_model, instructions_per_tick, make_time_model
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.packets import BadBytes
from rtit.trace import Trace
from support.recordings import record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]

CLOCKS = [(1, 1_000_000_000), (3, 1_000_000_000), (2, 3_200_000_000), (1, 800_000_000)]
TSC_HZ = 1_000_000_000


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


@pytest.mark.parametrize(("cpi", "core_hz"), CLOCKS)
def test_executed_instructions_advance_time_by_the_model(
    backend: str,
    cpi: int,
    core_hz: int,
    program: ProgramBuilder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run begins after the time of all earlier instructions, and CYCs add up."""
    data, truth = tmp_path / "perf.data", tmp_path / "truth"
    recording = record_to_end(
        start_recording(
            RecordRequest(
                [str(program("recursion"))],
                backend=backend,
                event="intel_pt/cyc,noretcomp/u",
                output=data,
                truth=truth,
                time=make_time_model(cpi=cpi, core_hz=core_hz),
            )
        )
    )
    assert main(["verify", str(data), "--truth", str(truth)]) == 0
    capsys.readouterr()
    [(_, _, instructions, _, _)] = TruthFile(str(truth)).threads()
    assert instructions == recording.instructions
    with Trace(data) as trace:
        [stream] = trace.streams
        packets = [each for each in stream.scan() if not isinstance(each, BadBytes)]
        ratios = {each.fields["ratio"] for each in packets if each.name == "CBR"}
        assert ratios == {core_hz // 100_000_000}
        assert trace.data.info is not None
        assert trace.data.info.max_nonturbo_ratio == TSC_HZ // 100_000_000
        assert trace.data.time_conversion is not None
        assert trace.data.time_conversion.to_tsc(123_456_789) == 123_456_789
        # The time of a run is that of the last CYC before it: of the first branch in the last TNT.
        rows = list(stream.rows())
        first, passed, late = int(rows[0].time[0]), 0, 0
        for some in rows:
            for time, count in zip(some.time, some.instructions, strict=True):
                took = int(time) - first
                if backend == "qemu":  # a clock passes on where code appears
                    late = max(late, took - passed * cpi * TSC_HZ // core_hz)
                due = passed * cpi * TSC_HZ // core_hz + late
                assert due - 400 * cpi * TSC_HZ // core_hz <= took <= due + 1
                passed += int(count)
        assert passed == instructions
        if backend == "ptrace":
            assert stream.counts().cycles == instructions * cpi


def test_instructions_per_tick_advance_the_tsc() -> None:
    for cpi, core_hz in [*CLOCKS, (1, 25_500_000_000), (7, 100_000_000)]:
        model = make_time_model(cpi=cpi, core_hz=core_hz)
        step = instructions_per_tick(model)
        assert all(model.tsc(clock + step) > model.tsc(clock) for clock in range(1000))
        if step > 1:
            assert any(model.tsc(clock + step - 1) == model.tsc(clock) for clock in range(1000))


def test_code_change_within_one_tsc_tick_is_decoded(
    backend: str, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Many instructions retire in one tick of the TSC, and code changes between two of them."""
    data, truth = tmp_path / "perf.data", tmp_path / "truth"
    record_to_end(
        start_recording(
            RecordRequest(
                [str(program("self_modify"))],
                backend=backend,
                event="intel_pt/cyc/u",
                output=data,
                truth=truth,
                time=make_time_model(core_hz=25_500_000_000),
            )
        )
    )
    code = main(["verify", str(data), "--truth", str(truth)])
    assert code == 0, capsys.readouterr().out


def test_report_states_the_time_model(
    program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(tmp_path / "perf.data")
    options = ["--backend", "ptrace", "-q", "-o", data, "--cpi", "2", "--core-clock", "3.2GHz"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert main(["record", *options, "--", str(program("fork"))]) == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert main(["report", data]) == 0
    text = "time: modelled: 0.625 ns per retired instruction (CPI 2, core clock 3.2 GHz, TSC 1 GHz)"
    assert text in capsys.readouterr().out


def test_default_time_model_has_a_short_description() -> None:
    assert describe_time_model(make_time_model()) == "modelled: 1 ns per retired instruction"


def test_time_of_last_instruction_agrees_with_perf(program: ProgramBuilder, tmp_path: Path) -> None:
    data = tmp_path / "perf.data"
    model = make_time_model(cpi=2, core_hz=3_200_000_000)
    argv = [str(program("recursion"))]
    event = "intel_pt/cyc/u"
    record_to_end(
        start_recording(RecordRequest(argv, backend="ptrace", event=event, output=data, time=model))
    )
    try:
        lines = perf.script(data, ["--itrace=i0ns", "-F", "time,ip", "--ns"], None).splitlines()
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    with Trace(data) as trace:
        [stream] = trace.streams
        ends = [int(part.time[-1]) for part in stream.instructions()]
    theirs = round(float(lines[-1].split(":")[0]) * 1e9)
    assert abs(theirs - ends[-1]) <= 100
