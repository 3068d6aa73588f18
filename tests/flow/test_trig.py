"""TRIG, which is newer than the chapter: libipt's cases have the instruction after it."""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Any

import pytest

core = pytest.importorskip("rtit._core", reason="the native module is not built")

TRIG = re.compile(r"\[trig ([0-9a-f]{2})(?:, ip: ([0-9a-f]{16}))?(, mult)?\]")
NEXT = re.compile(r"(?:\[disabled, at: )?([0-9a-f]{16})\]?")


def parse_trigs(text: str) -> list[tuple[int, int, bool]]:
    """Return value, address and MULT of each TRIG; without an address, that of the next line with
    one.
    """
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines):
        if match := TRIG.fullmatch(line):
            later = [address[1] for line in lines[number:] if (address := NEXT.fullmatch(line))]
            where = match[2] or (later[0] if later else "0")
            found.append((int(match[1], 16), int(where, 16), bool(match[3])))
    return found


def events(name: str, folder: Path) -> list[tuple[int, int, bool]]:
    space = core.Space()
    space.map(0, 0x1000, (folder / f"{name}.bin").read_bytes())
    flow = core.StreamDecoder((folder / f"{name}.pt").read_bytes(), space)
    found = []
    while (rows := flow.rows(1000)) is not None:
        columns: list[Any] = [array("Q", rows[key]) for key in ("event_ip", "event_value")]
        for kind, ip, value in zip(rows["event_kind"], *columns, strict=True):
            if flow.EVENTS[kind] == "trig":
                found.append((value & 0xFF, ip, bool(value >> 8 & 1)))
    assert {row[2] for row in flow.ledger()} == {"exact"}
    return found


# Cases where no later instruction runs, so that no line has an address.
UNLISTED = {
    ("mode-trig-trig", 0xA4): 0x100B,
    ("tnt-trig", 0xA1): 0x1008,
    ("fup-tip-trig", 0x1A): 0x1002,
}
CASES = ["exstop-trig", "fup-tip-trig", "mode-trig-trig", "psb-fup-ptw-trig"]


@pytest.mark.parametrize("name", [*CASES, "tnt-trig", "trig-fup"])
def test_trig_events_equal_those_of_libipt(name: str, traces: Path) -> None:
    folder = traces / "libipt-cases"
    expected = parse_trigs((folder / f"{name}.instructions.txt").read_text())
    assert expected
    assert events(name, folder) == [
        (value, UNLISTED.get((name, value), ip), mult) for value, ip, mult in expected
    ]


def test_trig_without_ip_and_count_has_no_address(traces: Path) -> None:
    found = events("trig", traces / "libipt-cases")
    assert found == [(value, 0, value in (3, 5, 7)) for value in range(1, 8)]
