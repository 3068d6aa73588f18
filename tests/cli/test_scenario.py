"""`rtit scenario`: output, errors and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtit.cli.internals import scenario
from rtit.cli.parser import CommandParser
from rtit.errors import UsageError
from support.unit_pages import UnitPage

# Table 33-55 rows 4 and 13; the FUP's address and a packet too many are wrong on purpose.
WRONG_SCENARIO = """# A jump and a fault.
section 33.7
ctl OS User BranchEn
enable 0x1000
    ...
indirect_jump 0x1000 0x2000
    TIP 0x2000
exception 0x2004 0x3000 vector=13
    FUP 0x2008
    TIP 0x3000
    CBR 10
read STATUS Stopped=1
retire 0x3001
"""


def run_scenario(*words: str) -> int:
    parser = CommandParser("rtit scenario")
    scenario.add_arguments(parser)
    return scenario.run(parser.parse_args(words))


def usage_error(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        run_scenario(*words)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.fixture
def wrong_scenario(tmp_path: Path) -> str:
    path = tmp_path / "wrong.scenario"
    path.write_text(WRONG_SCENARIO)
    return str(path)


def test_scenario_with_expected_packets_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_scenario("table_33_55_row_09_far_cr3") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "table_33_55_row_09_far_cr3: section 33.7, table 33-55 row 9"
    far = ["far", "0x1000", "0x2000", "cr3=0x45000", "PIP", "0", "0x45000"]
    assert out[-3].split()[1:] == far
    assert out[-2].split() == ["TIP", "0x2000"]
    assert out[-3].index("PIP") == out[-2].index("TIP")
    assert out[-1] == "as expected: 2 events, 9 packets"


def test_different_packets_are_marked_with_exit_code_1(
    wrong_scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_scenario(wrong_scenario) == 1
    out = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert out[:2] == ["wrong: section 33.7", "A jump and a fault."]
    assert "6 indirect_jump 0x1000 0x2000 TIP 0x2000" in out
    at = out.index("8 exception 0x2004 0x3000 vector=13 expected FUP 0x2008")
    assert out[at + 1 : at + 4] == ["got FUP 0x2004", "TIP 0x3000", "expected CBR 10"]
    assert out[at + 4] == "12 read STATUS Stopped=1 different: read Stopped=0x0, expected 0x1"
    assert out[-1] == "DIFFERENT: 2 of 5 events"


def test_quiet_prints_only_differences(
    wrong_scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_scenario("-q", "table_33_10_begin") == 0
    assert capsys.readouterr().out == ""
    assert run_scenario("-q", wrong_scenario, "table_33_10_begin") == 1
    out = capsys.readouterr().out
    assert f"{wrong_scenario}:8:" in out
    assert "indirect_jump" not in out
    assert out.endswith("2 scenarios: 1 differ\n")


def test_json_has_expected_and_actual_packets(
    wrong_scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_scenario(wrong_scenario, "table_33_10_begin", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    first, second = document["scenarios"]
    assert (first["as_expected"], second["as_expected"]) == (False, True)
    assert second["tables"][0] == {"table": "33-10", "row": "1"}
    fault: dict[str, Any] = first["events"][2]
    assert fault["packets"] == ["FUP 0x2004", "TIP 0x3000"]
    assert fault["raw"] == "3d04202d0030"
    assert fault["expected"] == ["FUP 0x2008", "TIP 0x3000", "CBR 10"]


def test_malformed_file_does_not_stop_other_scenarios(
    wrong_scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.scenario"
    bad.write_text("jmup 1 2\n")
    late = tmp_path / "late.scenario"
    late.write_text("ctl User BranchEn\nenable 0x1000\n    ...\nrsm\n")
    assert (
        run_scenario(str(bad), str(late), str(tmp_path / "none.scenario"), "table_33_10_begin") == 1
    )
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        f"rtit scenario: {bad}:1: there is no event or setting 'jmup'; did you mean jump?",
        f"rtit scenario: {late}:4: rsm: RSM is executed, but no SMI has saved a state",
        f"rtit scenario: {tmp_path / 'none.scenario'}: No such file or directory",
    ]
    assert "TIP.PGE 0x1000" in printed.out
    assert printed.out.endswith("4 scenarios: 3 cannot be run\n")
    assert run_scenario("--json", str(late)) == 1
    assert "no SMI" in json.loads(capsys.readouterr().out)["scenarios"][0]["error"]


def test_profile_and_parameter_options_change_the_packets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Broadwell sends effective IPs (33.3.1.1); `none` leaves all of an IP in the packet.
    assert (
        run_scenario("table_33_55_row_04_indirect", "--set", "ip_compression=none", "--json") == 0
    )
    steps = json.loads(capsys.readouterr().out)["scenarios"][0]["events"]
    assert steps[1]["raw"] == "cd0020000000000000"
    assert run_scenario("ip_linear") == 0
    assert run_scenario("ip_linear", "--profile", "broadwell") == 1
    assert run_scenario("table_33_55_row_04_indirect", "--profile", "skylake") == 0


def test_html_option_writes_a_page_with_the_printed_packets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.html"
    assert run_scenario("--html", str(out), "cr3_filter", "--json") == 0
    events = json.loads(capsys.readouterr().out)["scenarios"][0]["events"]
    rows = UnitPage(out.read_text()).rows
    assert [row.event for row in rows] == [f"{each['line']}{each['event']}" for each in events]
    printed = [[text.strip() for text in row.packets] for row in rows]
    assert printed == [each["packets"] for each in events]


def test_page_of_a_scenario_that_cannot_go_on_shows_the_events_before(tmp_path: Path) -> None:
    late, out = tmp_path / "late.scenario", tmp_path / "out.html"
    late.write_text("ctl User BranchEn\nenable 0x1000\n    ...\nrsm\n")
    assert run_scenario("-q", "--html", str(out), str(late)) == 1
    page = UnitPage(out.read_text())
    assert [row.event for row in page.rows] == ["2enable 0x1000"]
    assert "rsm: RSM is executed, but no SMI has saved a state" in page.text


def test_html_option_takes_one_scenario() -> None:
    error = usage_error("--html", "out.html", "cr3_filter", "table_33_10_begin")
    assert error == "--html writes one scenario: give only one FILE"


def test_raw_option_writes_the_packets(tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    assert run_scenario("--raw", str(out), "table_33_10_begin") == 0
    # PSB, CBR 10, MODE.TSX, PSBEND, MODE.Exec 64, TIP.PGE 1000H, and what Table 33-10 has.
    psb_plus = bytes.fromhex("0282" * 8 + "02030a00" + "9920" + "0223")
    assert out.read_bytes() == psb_plus + bytes.fromhex("9901 310010 06 9921 3d1010")


def test_list_groups_scenarios_by_section(
    wrong_scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_scenario("--list") == 0
    out = capsys.readouterr().out
    assert "\n33.4.2.6  FUP\n  fup_current_ip" in out
    assert out.index("\n33.4.2.9  ") < out.index("\n33.4.2.10  ")
    assert run_scenario("--list", str(tmp_path)) == 0
    assert capsys.readouterr().out == (
        "33.7  packet generation scenarios\n  wrong\n      A jump and a fault.\n"
    )
    assert run_scenario("--list", "--json", wrong_scenario) == 0
    assert json.loads(capsys.readouterr().out)["scenarios"][0]["name"] == "wrong"


def test_syntax_describes_the_file_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_scenario("--syntax") == 0
    out = capsys.readouterr().out
    assert "`#GP` and `#UD` for faults" in out
    assert "\\n" not in out
    assert "\n  indirect_jump IP TARGET\n" in out
    assert "\n  wake last= deepest= [reason=] [ticks=]\n" in out
    assert "\n  enable [IP]\n" in out
    assert "cpl=" not in out


def test_wrong_arguments_are_a_usage_error(tmp_path: Path) -> None:
    assert "no scenario given" in usage_error()
    assert "did you mean table_33_10_begin" in usage_error("table_33_10_begn")
    assert "no .scenario file" in usage_error(str(tmp_path))
    assert "give only one FILE" in usage_error("--raw", "x", "acm", "getsec")
    assert "NAME=VALUE" in usage_error("acm", "--set", "tnt_form")
    assert "the unit has no 'tnt_from'; did you mean tnt_form" in usage_error(
        "acm", "--set", "tnt_from=1"
    )
    assert "there is no profile 'skylak'" in usage_error("acm", "--profile", "skylak")
