"""`rtit packets --html` and `--head`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit import scenario
from rtit.cli.main import main
from support.unit_pages import UnitPage

# A trace whose PacketEn changes with an address range (sections 33.2.5.3, 33.3.7 and 33.3.8).
FILTERED = """ctl User BranchEn ADDR0_CFG=1
write ADDR0_A 0x1000
write ADDR0_B 0x1fff
enable 0x1000
    ...
jump 0x1000 0x3000
    TIP.PGD 0x3000
jump 0x3000 0x1200
    TIP.PGE 0x1200
begin_overflow
end_overflow 0x1200
    ...
"""


@pytest.fixture
def raw_file(tmp_path: Path) -> Path:
    result = scenario.run(scenario.parse(FILTERED, "filtered.scenario"))
    assert result.as_expected
    path = tmp_path / "filtered.pt"
    path.write_bytes(result.raw)
    return path


def write_page(raw: Path, *options: str, code: int = 0) -> UnitPage:
    out = raw.with_suffix(".html")
    assert main(["packets", "--raw", str(raw), "--html", str(out), *options]) == code
    return UnitPage(out.read_text())


def test_page_has_the_bytes_of_all_packets(
    raw_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = write_page(raw_file)
    assert b"".join(b"".join(row.raw) for row in page.rows) == raw_file.read_bytes()
    assert capsys.readouterr().out == ""
    assert "These are the first" not in page.text


def test_lane_of_packet_en_follows_the_trace_unit(raw_file: Path) -> None:
    rows = write_page(raw_file).rows
    lanes = [(row.packets[0].split()[0], row.lanes["PSB+"], row.lanes["PacketEn"]) for row in rows]
    # unknown until PSBEND: a PSB+ without a FUP means PacketEn=0
    assert lanes == [
        *(("PSB", "1", "?"), ("CBR", "1", "?"), ("MODE.TSX", "1", "?"), ("PSBEND", "0", "0")),
        *(("MODE.Exec", "0", "0"), ("TIP.PGE", "0", "1"), ("TIP.PGD", "0", "0")),
        *(("TIP.PGE", "0", "1"), ("OVF", "0", "?"), ("FUP", "0", "1")),
    ]
    assert [row.lanes["overflow"] for row in rows] == ["0"] * 8 + ["1", "0"]


def test_addresses_are_joined_with_last_ip(raw_file: Path) -> None:
    rows = write_page(raw_file).rows
    packets = [row.packets[0] for row in rows if row.packets[0].startswith("TIP")]
    assert packets == ["TIP.PGE 0x1000", "TIP.PGD 0x3000", "TIP.PGE 0x1200"]


def test_head_limits_the_packets_of_page_and_list(
    raw_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = write_page(raw_file, "--head", "2")
    assert [row.event for row in page.rows] == ["00000000", "00000010"]
    assert "These are the first 2 packets." in page.text
    assert main(["packets", "--raw", str(raw_file), "--head", "2"]) == 0
    assert capsys.readouterr().out == "00000000  PSB\n00000010  CBR ratio=10\n"
    assert main(["packets", "--raw", str(raw_file), "--head", "1", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_bytes_that_are_no_packet_are_a_row_of_their_own(raw_file: Path) -> None:
    raw_file.write_bytes(raw_file.read_bytes() + b"\x02\xff\xff\xff")
    page = write_page(raw_file, code=3)
    assert page.rows[-1].packets == []
    assert set(page.rows[-1].lanes.values()) == {"?"}
    assert "4 bytes: undefined packet opcode" in page.text


def test_hostile_file_name_stays_text(raw_file: Path) -> None:
    hostile = raw_file.with_name("<script>\x1b[31m&.pt")
    raw_file.rename(hostile)
    page = write_page(hostile)
    assert r"<script>\x1b[31m&.pt" in page.text
    assert "script" not in {tag for tag, _ in page.tags}


def test_html_and_json_cannot_be_combined(
    raw_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["packets", "--raw", str(raw_file), "--html", "x", "--json"]) == 2
    assert "--html and --json cannot be combined" in capsys.readouterr().err
