"""The times that libipt's published cases print, packet by packet."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rtit

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "traces" / "libipt-cases"
PRINTED = re.compile(r"([0-9a-f]{16})\s.*\btsc (?:([+-])([0-9a-f]+)|([0-9a-f]+))\s*$")


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Those that print times, with how they were run."""
    if not FOLDER.is_dir():
        return []
    index = json.loads((FOLDER / "index.json").read_text())
    runs = [(case["name"], run) for case in index for run in case["runs"]]
    return [
        (name, run)
        for name, run in runs
        if run["level"] == "packets" and "--time" in run["options"]
    ]


def expected(text: str) -> dict[int, int]:
    """The time at each offset that has one: of a line the change, or what it is now."""
    found: dict[int, int] = {}
    now = 0
    for line in text.splitlines():
        match = PRINTED.match(line)
        if match is None or (match[4] and line.split()[1] == "tsc" and len(line.split()) < 4):
            continue
        change = int(match[3] or "0", 16) * (-1 if match[2] == "-" else 1)
        now = int(match[4], 16) if match[4] else now + change
        found[int(match[1], 16)] = now
    return found


@pytest.mark.spec("TIME-009", "CYC-015")
@pytest.mark.parametrize(("name", "run"), [pytest.param(*case, id=case[0]) for case in cases()])
def test_times(name: str, run: dict[str, Any]) -> None:
    options = dict(zip(run["options"], run["options"][1:], strict=False))

    def number(option: str) -> int:
        return int(options.get(option, "0"), 0)

    (stream,) = rtit.decode(
        (FOLDER / f"{name}.pt").read_bytes(),
        mtc_freq=number("--mtc-freq"),
        nom_freq=number("--nom-freq"),
        cpuid_15=(number("--cpuid-0x15.eax"), number("--cpuid-0x15.ebx")),
    ).streams
    columns = stream.packets(timing=True).columns()
    times = dict(zip(columns["offset"].tolist(), columns["time"].tolist(), strict=True))
    wanted = expected((FOLDER / run["expected"]).read_text())
    assert wanted
    assert {offset: times[offset] for offset in wanted} == wanted


def test_how_many_points() -> None:
    if not FOLDER.is_dir():
        pytest.skip("the folder of real traces is not beside the repository")
    points = [len(expected((FOLDER / run["expected"]).read_text())) for _, run in cases()]
    assert sum(points) == 92
