"""`rtit events`: one line for each event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtit.cli.main import main
from support.recordings import Recorder


@pytest.fixture
def echo_recording(record: Recorder) -> Path:
    return record([Path("/bin/echo"), "hello"]).data


def test_text_has_a_line_for_each_event(
    echo_recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["events", str(echo_recording)]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("# thread ")
    assert any(" enabled ip=0x" in line for line in lines)
    # A system call leaves the context that is traced.
    assert any(line.endswith(" why=context") for line in lines)


def test_json_pairs_enabled_and_disabled_events(
    echo_recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["events", "--json", str(echo_recording)]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    enabled = [each for each in found if each["event"] == "enabled"]
    disabled = [each for each in found if each["event"] == "disabled"]
    # Tracing continues after each system call but the last, which ends the program.
    assert len(enabled) == len(disabled) > 10
    assert {each["why"] for each in disabled} <= {"context", "event or TraceEn"}
    times = [each["nanoseconds"] for each in found]
    assert times == sorted(times)


def test_selection_options_select_events(
    echo_recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_json(*words: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["events", "--json", str(echo_recording), *words]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    whole = run_json()
    assert run_json("--head", "3") == whole[:3]
    assert run_json("--tail", "2") == whole[-2:]
    first, last = whole[4]["nanoseconds"], whole[-5]["nanoseconds"]
    between = [each for each in whole if first <= each["nanoseconds"] <= last]
    assert run_json("--time", f"{first},{last}") == between
    at = next(each["at"] for each in whole if each["event"] == "disabled")
    here = [each for each in whole if at in (each.get("at"), each.get("ip"))]
    assert run_json("--range", f"{at:x}-{at + 1:x}") == here
    assert main(["events", str(echo_recording), "--function", "absent"]) == 2
    assert "no mapped file has this function" in capsys.readouterr().err
