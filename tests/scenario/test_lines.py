"""Packets as lines: IPs joined by Table 33-18, expectations by line and by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.packets import NAMES, PSB
from rtit.scenario import PacketLine, parse, run
from rtit.scenario.catalogue import shipped_scenarios
from rtit.scenario.model import PacketLineReader, format_line


def test_ips_are_completed_from_last_ip() -> None:
    """Table 33-18: IPBytes 110b, 001b, 010b, 100b, 000b, 011b with sign extension, after PSB."""
    data = bytes.fromhex(
        "cd8877665544332211" + "2d9999" + "5dddccbbaa" + "91665544332211" + "01" + "6d0000000000ff"
    )
    reader = PacketLineReader()
    assert [(line.name, *line.values) for line in reader.read_complete_packets(data)] == [
        ("TIP", 0x1122334455667788),
        ("TIP", 0x1122334455669999),
        ("FUP", 0x11223344AABBCCDD),
        ("TIP.PGE", 0x1122112233445566),
        ("TIP.PGD",),
        ("TIP", 0xFFFFFF0000000000),
    ]
    assert reader.read_complete_packets(PSB + bytes.fromhex("2d0813"))[1] == PacketLine(
        "TIP", (0x1308,)
    )


def test_packet_lines_have_the_form_of_scenarios() -> None:
    data = bytes.fromhex("48 9902 9905 9920 02030a00 59f0 1b")
    assert [format_line(line) for line in PacketLineReader().read_complete_packets(data)] == [
        "TNT NNTNN",
        "MODE.Exec 32",
        "MODE.Exec 64 IF",
        "MODE.TSX 0 0",
        "CBR 10",
        "MTC 240",
        "CYC 3",
    ]


def test_exact_bytes_are_compared() -> None:
    text = (
        "ctl User BranchEn\nenable 0x1000\n    ...\nindirect_jump 0x1000 0x2000\n    = 2d 00 {}\n"
    )
    assert run(parse(text.format("20"), "x")).as_expected
    result = run(parse(text.format("21"), "x"))
    assert not result.as_expected
    assert result.report.splitlines() == [
        "x:4: indirect_jump 0x1000 0x2000",
        "  + TIP 0x2000",
        "  + = 2d 00 20",
        "  - = 2d 00 21",
    ]


def test_very_long_lists_are_compared() -> None:
    wanted = ["    PAD\n"] * 1100
    text = f"ctl User BranchEn\nenable 0x1000\n    ...\npad 1099\n{''.join(wanted)}"
    report = run(parse(text, "x")).report.splitlines()
    assert report[-2:] == ["    PAD * 1099", "  - PAD"]
    assert run(parse(text.replace("1099", "1100"), "x")).as_expected


def test_many_pads_are_one_line() -> None:
    text = "ctl User BranchEn\nenable 0x1000\n    ...\npad 222\n    PAD * {}\n"
    assert run(parse(text.format(222), "x")).as_expected
    report = run(parse(text.format(223), "x")).report.splitlines()
    assert report == ["x:4: pad 222", "    PAD * 222", "  - PAD"]


COUNTS_BYTES = ("pend_psb_once", "psb_pending_at_smi")
"""Another PSB is due, since buffered bytes are not counted yet."""


@pytest.mark.parametrize(
    "scenario",
    [path for path in shipped_scenarios() if path.stem not in COUNTS_BYTES],
    ids=lambda path: path.stem,
)
def test_deferred_packets_appear_complete(scenario: Path) -> None:
    """Bytes may leave the buffers in the middle of a packet or a block."""

    def printed_lines(**parameters: str) -> list[str]:
        lines = [line for step in run(scenario, parameters=parameters).steps for line in step.lines]
        return [format_line(line) for line in lines if line.name in NAMES]

    at_once, late = printed_lines(), printed_lines(held_bytes="40")
    assert late == at_once[: len(late)]


def test_wrmsr_is_an_instruction_and_write_is_not() -> None:
    text = "wrmsr CR3_MATCH 0x5000\n    #GP\nwrite CR3_MATCH 0x5000\nread CR3_MATCH 0x5000\n"
    assert run(parse(text, "x")).as_expected
    kernel = "arch cpl=0\nwrmsr CR3_MATCH 0x5000\nread CR3_MATCH 0x5000\n"
    assert run(parse(kernel, "x")).as_expected
