"""The summary that `rtit record` prints at its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from signal import SIGSEGV

import pytest

from rtit.capture.backends import BackendChoice
from rtit.capture.session import Recording
from rtit.cli import help_pages, output
from rtit.cli.look.record import summary_json, summary_line
from rtit.perfdata import ExitStatus, Fault

CHOICE = BackendChoice("ptrace", "as requested")
COMPLETED = Recording(
    path=Path("perf.data"),
    exit_code=0,
    instructions=1_076_247,
    threads=1,
    pt_bytes=5000,
    warnings=(),
    branches=200,
    ending=ExitStatus(0, of_process=True),
)
CRASHED = replace(
    COMPLETED,
    exit_code=128 + SIGSEGV,
    ending=ExitStatus(SIGSEGV, True, True, Fault(0x401000, 1, 0x10)),
)


@pytest.mark.parametrize(
    ("recording", "text"),
    [
        (
            COMPLETED,
            "1,076,247 instructions, 200 branches of 1 thread as 5,000 bytes of PT in perf.data; ",
        ),
        (
            replace(COMPLETED, partial=True, threads=2),
            "1,076,247 instructions, 200 branches of 2 threads executed, of which 5,000 bytes "
            "of PT are in perf.data; ",
        ),
        (
            replace(COMPLETED, partial=True, traced_instructions=7, traced_branches=2),
            "1,076,247 instructions, 200 branches of 1 thread executed, of them 7 instructions, "
            "2 branches traced as 5,000 bytes of PT in perf.data; ",
        ),
        (CRASHED, "perf.data; ended by SIGSEGV at address 0x10, instruction 0x401000; "),
        (replace(COMPLETED, ending=ExitStatus(0x300)), "perf.data; ended with exit code 3; "),
        (replace(COMPLETED, ending=None), "perf.data; "),
    ],
)
def test_summary_line_states_totals_and_ending(recording: Recording, text: str) -> None:
    line = summary_line(recording, CHOICE)
    assert line.startswith("[ rtit record: 1,076,247 instructions, ")
    assert line.endswith(f"{text}ptrace: as requested ]")


def test_summary_line_of_a_system_counts_cpus() -> None:
    choice = replace(CHOICE, is_system=True)
    assert "200 branches of 2 CPUs as" in summary_line(replace(COMPLETED, threads=2), choice)


def test_json_is_one_line_with_the_documented_names(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_json(summary_json(CRASHED, CHOICE, ["./program", "a b"]))
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    found = json.loads(text)
    documented_names = help_pages.RECORD_JSON.replace(",", " ").split()
    assert set(found) <= set(documented_names)
    assert found["signal"] == SIGSEGV
    assert found["fault"] == {"ip": 0x401000, "address": 0x10, "si_code": 1}
    assert found["ended"] == str(CRASHED.ending)
    assert found["command"] == ["./program", "a b"]
    assert summary_json(COMPLETED, CHOICE, [])["fault"] is None
