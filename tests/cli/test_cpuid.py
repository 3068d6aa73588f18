"""`rtit cpuid`: output, errors and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rtit.cli.internals import cpuid
from rtit.cli.parser import CommandParser
from rtit.errors import UsageError
from rtit.registers import PROFILES


def run_cpuid(*words: str) -> int:
    parser = CommandParser("rtit cpuid")
    cpuid.add_arguments(parser)
    return cpuid.run(parser.parse_args(words))


def usage_error(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        run_cpuid(*words)
    assert caught.value.exit_code == 2
    return str(caught.value)


def json_document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    run_cpuid(*words, "--json")
    return json.loads(capsys.readouterr().out)


def test_profile_lists_leaves_and_errata(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cpuid("--profile", "skylake") == 0
    out = capsys.readouterr().out
    assert "CPUID.(14H,0)  EAX 00000001  EBX 0000000F  ECX 00000007  EDX 00000000" in out
    assert "CPUID.(14H,1)  EAX 02490002  EBX 003F3FFF" in out
    assert "MTCFreq may be 0, 3, 6, 9" in out
    assert "effective IP" in out
    assert "erratum BDM70" in out
    assert "GenuineIntel00506E3_Skylake_CPUID" in out


@pytest.mark.parametrize("name", PROFILES)
def test_every_footnote_mark_has_a_source(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cpuid("--profile", name) == 0
    body, _, notes = capsys.readouterr().out.partition("where the values come from:\n")
    numbers = [line.split("]")[0].strip(" [") for line in notes.splitlines()]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    used = {line.rsplit("[", 1)[1].rstrip("]") for line in body.splitlines() if line[-1] == "]"}
    used -= {line for line in used if not line.isdigit()}
    assert used == set(numbers)


def test_leaf_option_selects_one_leaf_of_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cpuid("14h", "1", "--profile", "icelake") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("CPUID.(14H,1)  EAX 02490002  EBX 003F1FFF")
    assert not any("CPUID.(14H,0)" in line for line in lines)


def test_register_values_are_decoded_into_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cpuid("14H", "0", "EBX=0x23f", "ecx=80000007H") == 0
    out = capsys.readouterr().out
    assert "EBX[5]      PowerEvents" in out
    assert "ECX[31]     LIP" in out
    assert "not about PT, or reserved: bit 9" in out
    assert "EAX" not in out


def test_leaf_number_may_be_spelled_in_several_ways(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("80000008H", "0x80000008", "80000008"):
        assert run_cpuid(text, "EAX=0x3927") == 0
        assert "57        linear-address bits" in capsys.readouterr().out


def test_all_option_lists_zero_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cpuid("14H", "0", "EBX=0") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run_cpuid("14H", "0", "EBX=0", "--all") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 9


def test_json_has_fields_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    given = json_document(capsys, "14H", "1", "EAX=0x02490002")
    assert "profile" not in given
    (leaf,) = given["leaves"]
    assert (leaf["leaf"], leaf["subleaf"], leaf["EAX"]) == ("0x14", 1, "0x2490002")
    assert {row["name"]: row["value"] for row in leaf["fields"]} == {
        "MTCPeriods": 0x249,
        "RANGECNT": 2,
    }
    whole = json_document(capsys, "--profile", "alderlake")
    assert whole["profile"]["lip"] is True
    assert whole["profile"]["errata"]["APL11"]["on"] is False
    assert whole["profile"]["tsc_hz"] == 2_688_000_000
    rows = [row for leaf in whole["leaves"] for row in leaf["fields"]]
    lip = next(row for row in rows if row["name"] == "LIP")
    assert "alder-lake-p-i7" in lip["value_source"]


def test_list_names_profiles_and_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cpuid("--list") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in PROFILES)
    assert "CPUID.(14H,1)" in out
    assert json_document(capsys, "--list")["profiles"] == list(PROFILES)


def test_wrong_arguments_are_a_usage_error() -> None:
    assert "valid: 14H, 15H, 0DH" in usage_error("13H", "0", "EBX=1")
    assert "valid: 14H" in usage_error("fourteen", "EBX=1").replace("01H, 07H, 0DH, ", "")
    assert "valid: 0, 1" in usage_error("14H", "2", "EBX=1")
    assert "valid: icelake, " in usage_error("--profile", "icelak")
    assert "nothing to explain" in usage_error()
    assert "nothing to explain" in usage_error("14H")
    assert "register values need a leaf" in usage_error("EBX=1")
    assert "not both" in usage_error("14H", "EBX=1", "--profile", "full")
    assert "EAX, EBX, ECX and EDX" in usage_error("14H", "RBX=1")
    assert "32 bits" in usage_error("14H", "EBX=0x100000000")
    assert "one leaf" in usage_error("14H", "0", "1", "EBX=1")
