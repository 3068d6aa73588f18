"""Times of real traces lie within their bounds, never decrease, and are found by a `Selection`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rtit
from rtit.packets import encode
from rtit.perfdata import TimeConversion
from rtit.trace import Selection, Stream, TimeRange
from rtit.trace.trace import Trace

TABLES = ("blocks", "instructions", "branches", "raw_events", "sync_points", "packets")
# MTCFreq 3; ratio of the TSC, and CPUID.15H; the ELF file lies beside the packets
RAW_CLOCKS = {"dynamorio": (37, (2, 308)), "dynamorio/sleeping": (30, (2, 240))}


def open_raw(folder: Path, nom_freq: int, cpuid_15: tuple[int, int]) -> Stream:
    image = rtit.Image().add_elf(folder / "hello")
    return rtit.decode(
        (folder / "pt.bin").read_bytes(), image, mtc_freq=3, nom_freq=nom_freq, cpuid_15=cpuid_15
    ).streams[0]


def check(table: Callable[..., Any], clock: TimeConversion | None = None) -> int:
    """Check the times of a stream; return the number of rows."""
    timed = table(timing=True).columns()
    # packets have times only if selected by time
    times = table().columns().get("time", timed["time"])
    assert len(times) == len(timed["time"])
    for found in (times, timed["time"]):
        assert (timed["earliest"] <= found).all()
        assert (found <= timed["latest"]).all()
        assert (found[1:] >= found[:-1]).all()
    for low, high in [(0.0, 0.5), (0.4, 0.6), (0.9, 1.0)] if len(times) else []:
        bounds = np.quantile(times, [low, high], method="lower").tolist()
        start, end = (clock.to_nanoseconds(tick) if clock else tick for tick in bounds)
        where = TimeRange(start, end)
        first, last = where.to_ticks(clock)
        part = table(Selection(time=where)).columns()["time"]
        assert np.array_equal(part, times[(times >= first) & (times <= last)])
    return len(times)


@pytest.mark.spec("CYC-015", "TIME-010")
@pytest.mark.parametrize("name", RAW_CLOCKS)
@pytest.mark.parametrize("kind", TABLES)
def test_times_of_raw_traces_are_consistent(name: str, kind: str, traces: Path) -> None:
    stream = open_raw(traces / name, *RAW_CLOCKS[name])
    rows = check(getattr(stream, kind))
    if (name, kind) == ("dynamorio/sleeping", "instructions"):
        assert rows == 103_749


@pytest.mark.parametrize(
    "name",
    [
        "hase/loopy-skylake.perf.data",
        "hase/control_flow-skylake.perf.data",
        "hase/loopy-broadwell-snapshot.perf.data",
        "chromeos/cpu-wide.perf.data",
        "chromeos/piped.perf.data",
    ],
)
def test_times_of_recordings_are_consistent(name: str, traces: Path) -> None:
    if not (traces / name).is_file():
        pytest.skip(f"no {name}")
    with Trace(traces / name) as trace:
        rows = [
            check(getattr(stream, kind), trace.clock)
            for stream in trace.streams
            for kind in ("blocks", "raw_events", "packets")
        ]
    assert sum(rows)


START, WAKE = 0xEA6, 0x134192
TSC = encode("TSC", tsc=WAKE) + encode("TMA", ctc=0x7D01, fast_counter=0x10)
MODE = encode("MODE.Exec", csl=1, csd=0, iflag=0)
FUP = encode("FUP", ip_bytes=6, payload=0x1000)
SYNC, TAKEN = encode("PSB"), encode("TNT", bits="T")


def cyc(cycles: int) -> bytes:
    return encode("CYC", cycles=cycles)


@pytest.mark.spec("TIME-010", "CYC-015")
@pytest.mark.parametrize(
    "wake",
    [
        pytest.param(cyc(2376) + TSC, id="alone"),
        pytest.param(SYNC + cyc(2376) + TSC + MODE + FUP + encode("PSBEND"), id="PSB+"),
        pytest.param(
            SYNC
            + cyc(2376)
            + TSC
            + encode("PSBEND")
            + encode("TIP.PGE", ip_bytes=6, payload=0x1000),
            id="PSB+ without IP",
        ),
    ],
)
def test_cycles_beside_tsc_after_sleep_do_not_set_rate(wake: bytes) -> None:
    """An MTC is 960 ticks. 2376 cycles precede a TSC more than a million ticks after the last MTC,
    and no MTC follows.
    """
    head = encode("TSC", tsc=START) + encode("TMA", ctc=0x1F40, fast_counter=0)
    head += encode("CBR", ratio=12) + MODE + FUP + encode("PSBEND")
    ran = b"".join(cyc(400) + encode("MTC", ctc=ctc) for ctc in (0xE9, 0xEA)) + TAKEN
    after = cyc(49) + TAKEN + cyc(25) + TAKEN + TAKEN
    image = rtit.Image().add(0x1000, bytes.fromhex("75fe 90"))
    stream = rtit.decode(
        SYNC + head + ran + wake + after, image, mtc_freq=3, nom_freq=30, cpuid_15=(2, 240)
    ).streams[0]
    # measured before the sleep: 400 cycles in 960 ticks
    times = stream.branches().columns()["time"].tolist()
    assert times[-2:] == [WAKE + 49 * 960 // 400, WAKE + 74 * 960 // 400]
    for kind in TABLES:
        check(getattr(stream, kind))
