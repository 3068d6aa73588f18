"""The times of packets in libipt's published cases equal libipt's.

libipt takes the rate of cycles from the packets before a CYC, so that its times may exceed the
next MTC or TSC and then go back, or stand still before the first measure. Ours are on the line to
that packet (section 33.8.3.4): `OTHER` has these times, computed by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rtit

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "traces" / "libipt-cases"
OTHER = {
    # without a TSC: ahead of the next MTC, and back
    "cbr-mtc-cyc-mtc": {0x1A: 8},
    # 100H cycles up to MTC 3, at 1040H; libipt: no calibration yet
    "mtc-ovf_keep-cyc": {0x2C: 0x1040},
    # 200H cycles up to the CYC after the TSC of the PSB+, at a0300; libipt: no calibration yet
    "tsc-cyc_calibrate": {0x24: 0xA0280},
    # 4 cycles in 3 ticks up to the MTC: 3, then one more
    "tsc-tma-cbr-cyc-mtc": {0x25: 0xA0000 + 3 * 3 // 4, 0x26: 0xA0003},
    # 4 cycles in 4 ticks up to the MTC: 3, then one more
    "tsc-tma-cbr-mtc-cyc-mtc": {0x27: 0xA0006, 0x28: 0xA0007},
    # by CBR 2 ticks a cycle from a0003, but the TSC comes at a0008
    "tsc-tma-cbr-mtc-cyc-tsc": {0x27: 0xA0008, 0x28: 0xA0008},
    # 100H cycles up to MTC 3, at a0058
    "tsc-tma-cbr-mtc-cyc_calibrate": {0x27: 0xA0058},
    # e0H cycles up to MTC 5, at a00d8
    "tsc-tma-cbr-mtc-mtc-cyc": {0x2D: 0xA00D8},
}
PRINTED = re.compile(r"([0-9a-f]{16})\s.*\btsc (?:([+-])([0-9a-f]+)|([0-9a-f]+))\s*$")


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Return the cases that print times, with their settings."""
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
    """Return the time at each offset that has one; a line has the change or the value."""
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
def test_packet_times_equal_those_of_libipt(name: str, run: dict[str, Any]) -> None:
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
    printed = expected((FOLDER / run["expected"]).read_text())
    assert printed
    wanted = printed | OTHER.get(name, {})
    assert {offset: times[offset] for offset in wanted} == wanted
    assert (columns["earliest"] <= columns["time"]).all()
    assert (columns["time"] <= columns["latest"]).all()


def test_published_listings_contain_the_expected_number_of_times() -> None:
    if not FOLDER.is_dir():
        pytest.skip("the folder of real traces is not beside the repository")
    sample_counts = [len(expected((FOLDER / run["expected"]).read_text())) for _, run in cases()]
    assert (sum(sample_counts), sum(map(len, OTHER.values()))) == (92, 11)
