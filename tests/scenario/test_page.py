"""A scenario as a page: lanes, packets, and text that is not trusted.

The lanes are compared with the values that the scenarios of the library expect, which come from the
chapter.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from rtit import scenario
from rtit.scenario.html import scenario_page
from support.unit_pages import UnitPage

STATE_LANES = {"packet_en": "PacketEn", "filter_en": "FilterEn", "context_en": "ContextEn"}
REGISTER_LANES = ("TraceEn", "TriggerEn", "ContextEn", "FilterEn", "BranchEn", "Stopped", "Error")
"""Bits of IA32_RTIT_CTL and IA32_RTIT_STATUS that are lanes."""


def read_page(result: scenario.ScenarioResult) -> UnitPage:
    return UnitPage(b"".join(scenario_page(result.scenario, result.steps)).decode("ascii"))


def expected_lanes(event: scenario.ScenarioEvent) -> dict[str, str]:
    """Return the values of lanes that a scenario expects at an event."""
    if event.name == "state":
        return {
            STATE_LANES[name]: str(int(value))
            for name, value in event.named.items()
            if name in STATE_LANES
        }
    if event.name == "read":
        return {name: str(value) for name, value in event.named.items() if name in REGISTER_LANES}
    return {}


def test_lanes_have_the_values_that_the_library_expects() -> None:
    compared: dict[str, set[str]] = {}
    for path in scenario.shipped_scenarios():
        result = scenario.run(path)
        if not any(expected_lanes(step.event) for step in result.steps):
            continue
        for step, row in zip(result.steps, read_page(result).rows, strict=True):
            for name, value in expected_lanes(step.event).items():
                # a lane that is never 1 is left out
                assert row.lanes.get(name, "0") == value, (path.stem, step.event.line, name)
                compared.setdefault(name, set()).add(value)
    # no scenario reads BranchEn=0
    lanes = {name: {"0", "1"} for name in (*STATE_LANES.values(), *REGISTER_LANES)}
    assert compared == lanes | {"BranchEn": {"1"}}


def test_without_branch_en_its_lane_and_that_of_packet_en_are_0() -> None:
    result = scenario.run(scenario.parse("ctl User\nenable 0x1000\n    ...\n", "x.scenario"))
    (row,) = read_page(result).rows
    assert (row.lanes["TraceEn"], row.lanes["BranchEn"], row.lanes["PacketEn"]) == ("1", "0", "0")


def test_overflow_lane_is_1_between_its_begin_and_end() -> None:
    rows = read_page(scenario.run(scenario.find_scenario("overflow_enables"))).rows
    events = [row.event for row in rows]
    begin = next(at for at, text in enumerate(events) if "begin_overflow" in text)
    end = next(at for at, text in enumerate(events) if "end_overflow" in text)
    lane = "".join(row.lanes["overflow"] for row in rows)
    assert lane == "0" * begin + "1" * (end - begin) + "0" * (len(rows) - end)


def test_packets_have_their_bytes_values_and_sections() -> None:
    page = read_page(scenario.run(scenario.find_scenario("table_33_10_begin")))
    enable, conditional, begin = page.rows
    assert (enable.event, begin.event) == ("8enable 0x1000", "16begin_transaction 0x1010 0x1016")
    assert enable.packets[0].strip() == "PSB"
    assert enable.packets[4:] == ["MODE.Exec 64", "TIP.PGE 0x1000"]
    assert conditional.packets == []
    # the bytes of Tables 33-16, 33-27 and 33-22, which the scenario has
    assert begin.raw == [bytes.fromhex(raw) for raw in ("06", "9921", "3d1010")]
    assert begin.packets == ["TNT T", "MODE.TSX 1 0", "FUP 0x1010"]
    assert "section 33.4.2.6, table 33-22; sent if TriggerEn & ContextEn" in page.text
    assert "table 33-55 row 19: transactions" in page.text


def test_pads_in_a_row_are_one_element() -> None:
    rows = read_page(scenario.run(scenario.find_scenario("overflow_loses_trace_stop"))).rows
    assert [row.packets for row in rows if "pad 226" in row.event] == [["PAD * 226"]]


def test_packets_with_equal_addresses_keep_their_own_bytes(tmp_path: Path) -> None:
    path = tmp_path / "same.scenario"
    path.write_text(
        "section 33.4.2.2\nctl User BranchEn\nenable 0x1000\n    ...\n"
        "indirect_jump 0x1000 0x10001000\n    = 4d 00 10 00 10\n"
        "indirect_jump 0x10001000 0x10001000\n    = 2d 00 10\n"
    )
    rows = read_page(scenario.run(path)).rows
    assert [row.packets for row in rows[1:]] == [["TIP 0x10001000"]] * 2
    assert [row.raw for row in rows[1:]] == [[bytes.fromhex("4d00100010")], [b"\x2d\x00\x10"]]


def test_differences_show_expected_and_actual_packets(tmp_path: Path) -> None:
    path = tmp_path / "wrong.scenario"
    path.write_text(
        "section 33.7\nctl User BranchEn\nenable 0x1000\n    ...\n"
        "indirect_jump 0x1000 0x2000\n    TIP 0x3000\n"
    )
    page = read_page(scenario.run(path))
    assert page.rows[1].packets == ["got TIP 0x2000"]
    assert "expected TIP 0x3000" in page.text
    assert "DIFFERENT: 1 of 2 events" in page.text


@pytest.mark.parametrize("name", ["</title><script>alert(1)<", 'x" onload="alert(1)', "\x1b[31m"])
def test_hostile_names_and_remarks_stay_text(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name.replace('/', '')}.scenario"
    path.write_text(f"# {name}\nsection 33.7\nat 1\n")
    result = scenario.run(path)
    page = read_page(result)
    plain = read_page(scenario.run(scenario.parse("# x\nsection 33.7\nat 1\n", "x.scenario")))
    assert page.tags == plain.tags
    assert name.replace("\x1b", r"\x1b") in page.text
    assert "\x1b" not in page.text


def test_page_forbids_scripts_and_requests() -> None:
    page = read_page(scenario.run(scenario.find_scenario("cr3_filter")))
    (policy,) = (each["content"] for _, each in page.tags if "http-equiv" in each)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe"}


def test_notebook_form_has_the_rows_of_the_page() -> None:
    result = scenario.run(scenario.find_scenario("cr3_filter"))
    assert UnitPage(result._repr_html_()).rows == read_page(result).rows


def test_gallery_links_the_page_of_every_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = pytest.importorskip("docutils.nodes", reason="the documentation needs sphinx")
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(str(root / "docs" / "_extensions"))
    gallery = import_module("scenario_gallery")

    gallery.write_pages(tmp_path / "scenarios")
    sections = gallery.ScenarioGallery.run(None)
    links = [each["refuri"] for found in sections for each in found.findall(nodes.reference)]
    assert sorted(links) == sorted(
        f"scenarios/{path.stem}.html" for path in scenario.shipped_scenarios()
    )
    assert all((tmp_path / link).stat().st_size > 5000 for link in links)
