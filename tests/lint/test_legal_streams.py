"""Lint has no findings in streams of the trace unit for any events and parameters, nor in those of
real processors, except for errata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.build import PROGRAMS
from rtit.capture.ptrace.session import replay_events
from rtit.linter import lint
from rtit.registers.errata import ERRATA, errata_of
from rtit.scenario import Scenario, load, run, shipped_scenarios
from rtit.trace import Settings, Trace
from support.linting import lint_findings
from support.recordings import Recorder
from unit.world.plans import plans
from unit.world.program import Plan
from unit.world.world import World

ProgramBuilder = Callable[[str], Path]

LITERAL = "table_33_55_row_26_27_literal"
"""Table 33-55 shows user interrupts with a FUP alone; section 33.4.2.6 says that no FUP is."""
SCENARIOS = [load(path) for path in shipped_scenarios()]
NAMED = [pytest.param(each, id=Path(each.source).stem) for each in SCENARIOS]
ACTING = [name for name, erratum in ERRATA.items() if erratum.acts and not erratum.flag]


@pytest.mark.parametrize("scenario", NAMED)
def test_scenario_streams_have_no_findings(scenario: Scenario) -> None:
    rules = [finding.rule.name for finding in lint(run(scenario).raw)]
    assert rules == (["fup"] if LITERAL in scenario.source else [])


@given(st.booleans().flatmap(lambda overflows: plans(overflows=overflows)))
def test_random_executions_have_no_findings(plan: Plan) -> None:
    assert list(lint(World(plan).run())) == []


@pytest.mark.parametrize("erratum", ACTING)
def test_errata_excuse_findings_of_their_processor(erratum: str) -> None:
    for scenario in SCENARIOS:
        if LITERAL not in scenario.source:
            other = replace(scenario, profile=scenario.profile.with_errata(erratum))
            assert list(lint(run(other).raw, errata=[erratum])) == [], scenario.source


@pytest.mark.parametrize("erratum", ["BDM70", "SKD010", "APL11", "APL12"])
def test_unexcused_erratum_is_found(erratum: str) -> None:
    others = [replace(each, profile=each.profile.with_errata(erratum)) for each in SCENARIOS]
    found = [finding for each in others for finding in lint(run(each).raw)]
    assert any(erratum in finding.rule.errata for finding in found)


@pytest.mark.parametrize("name", [name for name, each in PROGRAMS.items() if each.ends])
def test_recordings_have_no_findings(name: str, program: ProgramBuilder, record: Recorder) -> None:
    assert lint_findings(record([program(name), *PROGRAMS[name].arguments]).data) == []


@pytest.mark.parametrize(
    "event",
    [
        "intel_pt/cyc,psb_period=0/u",
        "intel_pt/noretcomp,mtc_period=0,psb_period=0/u",
        "intel_pt/tsc=0,mtc=0/u",
        "intel_pt/notnt/u",
    ],
)
def test_recordings_with_other_settings_have_no_findings(
    event: str, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    data = tmp_path / "perf.data"
    replay_events(record([program("threads")]).log, data, event=event)
    assert lint_findings(data) == []


@pytest.mark.parametrize(
    "file",
    [
        "hase/loopy-skylake.perf.data",
        "hase/control_flow-skylake.perf.data",
        "hase/loopy-broadwell-snapshot.perf.data",
        "chromeos/piped.perf.data",
        "chromeos/cpu-wide.perf.data",
    ],
)
def test_real_traces_have_no_unexcused_findings(traces: Path, file: str) -> None:
    with Trace(traces / file) as trace:
        for stream in trace.streams:
            assert isinstance(stream.settings, Settings)
            assert stream.settings.cpu is not None
            family, model, _ = stream.settings.cpu
            assert list(lint(stream.chunks(), errata=errata_of(family, model))) == []


def test_real_trace_with_cyc_has_no_unexcused_findings(traces: Path) -> None:
    assert list(lint((traces / "dynamorio" / "pt.bin").read_bytes())) == []
