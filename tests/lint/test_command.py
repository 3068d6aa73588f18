"""`rtit lint`: one line for each finding, and the exit code."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import rtit
from lint.streams import OFF, ON, PGE, PSB, PSBEND, TNT
from rtit.cli.main import main

WRONG = ON + PSBEND + b"\x02\x03\x0a\x01"


@pytest.fixture
def raw_file(tmp_path: Path) -> Path:
    path = tmp_path / "pt"
    path.write_bytes(WRONG)
    return path


def test_lint_prints_each_finding_as_a_line(
    raw_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", "--raw", str(raw_file)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    at = len(ON)
    assert first == f"{at:08x}  PSBEND: a PSBEND ends a PSB+ [psbend, 33.4.2.18]"
    assert second.startswith(f"{at + 2:08x}  CBR: ")
    assert second.endswith(" (02 03 0a 01) [reserved-bits, 33.4.2]")


def test_lint_prints_findings_as_json(raw_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--raw", str(raw_file), "--json"]) == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "stream": None,
        "offset": len(ON),
        "packet": "PSBEND",
        "rule": "psbend",
        "section": "33.4.2.18",
        "says": "a PSBEND ends a PSB+",
        "detail": "",
    }
    assert second["detail"] == "02 03 0a 01"


def test_ignore_option_suppresses_findings_of_a_rule(
    raw_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", "--raw", str(raw_file), "--ignore", "psbend,reserved-bits"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["lint", "--raw", str(raw_file), "--ignore", "psb-end"]) == 2
    assert "--ignore: unknown rule 'psb-end'" in capsys.readouterr().err


def test_errata_option_excuses_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pt"
    path.write_bytes(OFF + ON + PGE)
    assert main(["lint", "--raw", str(path)]) == 1
    assert main(["lint", "--raw", str(path), "--errata", "BDM70"]) == 0
    assert main(["lint", "--raw", str(path), "--errata", "none"]) == 1
    assert main(["lint", "--raw", str(path), "--errata", "BDM7"]) == 2
    assert "there is no erratum BDM7" in capsys.readouterr().err


def test_errata_follow_the_processor_of_the_recording(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(traces / "hase" / "loopy-broadwell-snapshot.perf.data")
    assert main(["lint", data]) == 0
    assert main(["lint", data, "--errata", "none"]) == 1
    first, *_ = capsys.readouterr().out.splitlines()
    assert "thread 31552 (loopy): 00000050  PSBEND: " in first


def test_psb_period_option_sets_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "pt"
    path.write_bytes(ON + 5000 * TNT + ON)
    assert main(["lint", "--raw", str(path)]) == 0
    assert main(["lint", "--raw", str(path), "--psb-period", "2048"]) == 1


def test_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(PSB + TNT)

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert main(["lint", "--raw", "-"]) == 1


def test_list_option_prints_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--rules"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert "in-block" in names
    assert len(set(names)) == len(names)


def test_lint_function_equals_command() -> None:
    assert [(each.offset, each.rule.name) for each in rtit.lint(ON + PSBEND)] == [
        (len(ON), "psbend")
    ]
