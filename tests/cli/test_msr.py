"""`rtit msr`: output, legality, errors and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rtit.cli.internals import msr
from rtit.cli.parser import CommandParser
from rtit.errors import UsageError


def run_msr(*words: str) -> int:
    parser = CommandParser("rtit msr")
    msr.add_arguments(parser)
    return msr.run(parser.parse_args(words))


def usage_error(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        run_msr(*words)
    assert caught.value.exit_code == 2
    return str(caught.value)


def json_document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    run_msr(*words, "--json")
    return json.loads(capsys.readouterr().out)


def test_each_set_field_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_msr("IA32_RTIT_CTL", "0x2401") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "IA32_RTIT_CTL (570H, section 33.2.8.2) = 0x2401"
    named = [line.split()[1] for line in lines[1:-1]]
    assert named == ["PSBFreq", "BranchEn", "TSCEn", "TraceEn"]
    assert all("(Table 33-6)" in line for line in lines[1:-1])
    assert "2K bytes" in lines[1]
    assert "MTCEn" in lines[-1]


def test_all_option_lists_zero_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_msr("CTL", "0", "--all") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 24


def test_set_reserved_bits_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_msr("570H", "0x840000") == 0
    assert "reserved bits that are set: bits 23, 18 (0x840000)" in capsys.readouterr().out


def test_legal_write_exits_0_and_lists_changes(capsys: pytest.CaptureFixture[str]) -> None:
    # The value that perf writes on this processor for intel_pt//u, with ToPA output.
    assert run_msr("ctl", "0x300e709", "--profile", "skylake", "--current", "0x300e708") == 0
    out = capsys.readouterr().out
    assert "on skylake, WRMSR is legal" in out
    assert out.splitlines()[-1] == "  TraceEn: 0x0 -> 0x1"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("CTL", "0x300e709", "--profile", "broadwell"), "MTCFreq is reserved"),
        (("CTL", "0x4000", "--profile", "skylake"), "MTCFreq = 1 is not in the bitmap"),
        (("CTL", "0x101", "--profile", "broadwell"), "without BranchEn"),
        (("CTL", "0x40000", "--profile", "full"), "reserved bits: 0x40000"),
        (("CTL", "5", "--profile", "full", "--current", "1"), "changes while TraceEn stays 1"),
        (("CTL", "0", "--profile", "broadwell", "--vmx"), "VMX operation"),
        (("STATUS", "0", "--profile", "full", "--tracing"), "written while TraceEn is 1"),
        (("ADDR2_A", "0", "--profile", "icelake"), "is absent"),
        (("ADDR0_A", "0x800000000000", "--profile", "icelake"), "not canonical"),
        (("OUTPUT_BASE", "0x8000000000", "--profile", "alderlake"), "MAXPHYADDR = 39"),
    ],
)
def test_illegal_write_exits_1_with_the_reason(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_msr(*words) == 1
    out = capsys.readouterr().out
    assert "WRMSR faults with #GP(0):" in out
    assert reason in out


def test_write_of_the_same_value_while_tracing_is_legal() -> None:
    assert run_msr("CTL", "0x2101", "--profile", "broadwell", "--current", "0x2101") == 0


def test_read_only_bits_keep_their_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_msr("571", "7", "--profile", "full", "--current", "2") == 0
    assert "the new value of the MSR is 0x2" in capsys.readouterr().out
    assert run_msr("561", "0", "--profile", "full") == 0
    assert "the new value of the MSR is 0x7f" in capsys.readouterr().out


def test_field_assignments_build_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert json_document(capsys, "CTL", "TraceEn=1", "mtcfreq=0x3")["value"] == "0xc001"
    assert json_document(capsys, "OUTPUT_MASK_PTRS", "OutputOffset=5")["value"] == "0x50000007f"
    assert json_document(capsys, "OUTPUT_MASK_PTRS")["value"] == "0x7f"


def test_json_has_fields_and_legality(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json_document(capsys, "CTL", "0x44001")
    assert (plain["register"], plain["address"]) == ("IA32_RTIT_CTL", "0x570")
    assert plain["reserved"] == "0x40000"
    fields = {row["name"]: row for row in plain["fields"]}
    assert len(fields) == 24
    assert fields["MTCFreq"]["bits"] == "17:14"
    assert fields["MTCFreq"]["value"] == 1
    assert "write" not in plain
    judged = json_document(capsys, "CTL", "0x44001", "--profile", "skylake")["write"]
    assert judged["legal"] is False
    assert len(judged["faults"]) == 2
    assert judged["after"] is None
    judged = json_document(capsys, "CTL", "0x101", "--profile", "skylake")["write"]
    assert judged == {
        "profile": "skylake",
        "legal": True,
        "faults": [],
        "after": "0x101",
        "changes": [
            {"field": "TraceEn", "before": 0, "after": 1},
            {"field": "ToPA", "before": 0, "after": 1},
        ],
    }


def test_list_names_all_registers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_msr("--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 13
    assert lines[2].startswith("570H  IA32_RTIT_CTL ")
    assert len(json_document(capsys, "--list")) == 13


def test_wrong_arguments_are_a_usage_error() -> None:
    assert "valid: IA32_RTIT_CTL, " in usage_error("IA32_RTIT_CLT", "1")
    assert "valid: skylake, " in usage_error("CTL", "1", "--profile", "skylke")
    assert "valid: TraceEn, " in usage_error("CTL", "TracEn=1")
    assert "no register given" in usage_error()
    assert "is no number" in usage_error("CTL", "zwei")
    assert "does not fit in 64 bits" in usage_error("CTL", "0x10000000000000000")
    assert "does not fit in 4 bits" in usage_error("CTL", "MTCFreq=16")
    assert "one number" in usage_error("CTL", "1", "2")
    for option in (("--current", "1"), ("--vmx",), ("--tracing",)):
        assert "need --profile" in usage_error("CTL", "1", *option)
    assert "--current" in usage_error("CTL", "1", "--profile", "full", "--tracing")
    assert "is no number" in usage_error("CTL", "1", "--profile", "full", "--current", "x")
