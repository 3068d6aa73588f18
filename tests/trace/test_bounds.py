"""CYCs narrow the bounds of times: by hand, with generated streams of known clocks, on a
processor.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from rtit.packets import Packet, encode, scan
from rtit.trace import Stream
from rtit.trace.time.timing_samples import TimingSamples
from support.streams import SYNC

START = 1 << 20
IMAGE = rtit.Image().add(0x1000, bytes.fromhex("7502 90 90 75fa"))
"""1000 jnz 1004; 1002 nop; 1003 nop; 1004 jnz 1000"""
TAKEN = encode("TNT", bits="TT")
TMA = encode("TMA", ctc=0, fast_counter=0)
NEAR = 24
"""Ticks by which a bound may exceed the time by cycles."""


def cyc(cycles: int) -> bytes:
    return encode("CYC", cycles=cycles)


def mtc(ctc: int) -> bytes:
    return encode("MTC", ctc=ctc & 0xFF)


def tsc(value: int) -> bytes:
    return encode("TSC", tsc=value) + TMA


def stream(packets: bytes) -> Stream:
    """A crystal tick is 1000 TSC ticks; at ratio 20, a cycle is 1 TSC tick."""
    head = SYNC.replace(encode("CBR", ratio=10), TMA + encode("CBR", ratio=10))
    return rtit.decode(head + packets, IMAGE, nom_freq=20, cpuid_15=(1, 1000)).streams[0]


def bounds(packets: bytes, branch: int) -> tuple[int, int]:
    """Return the bounds of a branch, relative to `START`."""
    columns = stream(packets).branches(timing=True).columns()
    return int(columns["earliest"][branch]) - START, int(columns["latest"][branch]) - START


BETWEEN = cyc(100) + TAKEN + cyc(200) + TAKEN + cyc(200)
"""500 cycles; the code after the first branch ran after cycle 100 and before cycle 300."""


@pytest.mark.spec("CYC-008")
def test_cycles_between_two_mtcs_narrow_bounds() -> None:
    """At 2 ticks a cycle, from 1000 to 2000."""
    earliest, latest = bounds(cyc(500) + mtc(1) + BETWEEN + mtc(2) + TAKEN, 1)
    assert 1200 - NEAR <= earliest <= 1200
    assert 1600 <= latest <= 1600 + NEAR


def test_mtc_without_own_cyc_is_bounded_by_next_cyc() -> None:
    """With a threshold the cycles at an MTC are unknown, but the next CYC is later: at the first
    MTC 500 to 510 cycles, at the second 1000 to 1010.
    """
    packets = cyc(500) + TAKEN + mtc(1) + cyc(10) + TAKEN + cyc(90) + TAKEN + cyc(200) + TAKEN
    earliest, latest = bounds(packets + cyc(200) + TAKEN + mtc(2) + cyc(10) + TAKEN, 5)
    assert 1180 - NEAR <= earliest <= 1180
    assert 1600 <= latest <= 1600 + NEAR


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(encode("CBR", ratio=20), id="another frequency"),
        pytest.param(encode("OVF") + encode("FUP", ip_bytes=3, payload=0x1000), id="lost"),
    ],
)
def test_interrupted_cycle_count_does_not_narrow_bounds(between: bytes) -> None:
    packets = cyc(500) + mtc(1) + BETWEEN + between + mtc(2) + TAKEN
    assert bounds(packets, 1) == (1000, 2000)


def test_sleep_ends_cycle_count() -> None:
    """A stand-alone TSC follows time in which cycles were not counted."""
    packets = cyc(500) + mtc(1) + BETWEEN + tsc(START + 5000) + TAKEN
    assert bounds(packets, 1) == (1000, 5000)


def test_lost_bytes_end_cycle_count() -> None:
    packets = (
        cyc(500)
        + mtc(1)
        + BETWEEN
        + b"\x02\x01"
        + SYNC.replace(encode("TSC", tsc=START), tsc(START + 5000))
    )
    assert bounds(packets + TAKEN, 1) == (1000, 5000)


def test_disabled_tracing_ends_cycle_count() -> None:
    """A PSB+ after a pause of tracing, in which cycles were not counted."""
    off = encode("TIP.PGD", ip_bytes=0, payload=None)
    start = encode("TIP.PGE", ip_bytes=3, payload=0x1000)
    there = SYNC.replace(encode("TSC", tsc=START), tsc(START + 5000))
    there = there.replace(encode("FUP", ip_bytes=6, payload=0x1000), b"")
    packets = cyc(500) + mtc(1) + BETWEEN + off + there + start + TAKEN
    assert bounds(packets, 1) == (1000, 5000)


step = st.one_of(
    st.tuples(st.just("taken"), st.integers(0, 2500)),
    st.tuples(st.just("taken"), st.integers(0, 40)),
    st.tuples(st.just("ratio"), st.integers(5, 60)),
    st.tuples(st.just("sleep"), st.integers(1, 5000)),
    st.tuples(st.just("lose"), st.integers(1, 2000)),
    st.tuples(st.just("sync"), st.just(0)),
)


class Clocks:
    """Generates packets of a TSC, a crystal and a core, by sections 33.3.6 and 33.8.3."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.time = Fraction(START)
        self.rate = Fraction(20, 10)
        self.cycles = self.reported_cycles = self.edges = 0
        self.packets = b""
        self.ran: list[int] = []
        self.losing = False

    def eligible(self, packet: bytes) -> None:
        """Send a CYC-eligible packet in the current cycle."""
        passed = self.cycles - self.reported_cycles
        if passed and passed >= self.threshold:
            self.send(cyc(passed))
            self.reported_cycles = self.cycles
        self.send(packet)

    def send(self, packet: bytes) -> None:
        if not self.losing:
            self.packets += packet

    def run(self, cycles: int) -> None:
        """Run cycle by cycle: an MTC is sent in the first cycle after a crystal edge."""
        end = self.cycles + cycles
        while self.cycles < end:
            edge = START + 1000 * (self.edges + 1)
            needed = max(1, -(-(edge - self.time) // self.rate))
            passed = min(needed, end - self.cycles)
            self.cycles += passed
            self.time += passed * self.rate
            if self.time >= edge:
                self.edges += 1
                self.eligible(mtc(self.edges))

    def now(self) -> bytes:
        since = int(self.time) - START - 1000 * self.edges
        tma = encode("TMA", ctc=self.edges & 0xFFFF, fast_counter=since & 0x1FF)
        return encode("TSC", tsc=int(self.time)) + (tma if since < 512 else b"")

    def do(self, what: str, value: int) -> None:
        if what == "taken":
            self.run(value)
            self.eligible(TAKEN)
            self.ran += [int(self.time)] * 2
        elif what == "ratio":
            self.rate = Fraction(20, value)
            self.send(encode("CBR", ratio=value))
        elif what == "sleep":
            self.time += value
            self.edges = (int(self.time) - START) // 1000
            self.eligible(self.now())
        elif what == "sync":
            self.eligible(
                SYNC.replace(encode("TSC", tsc=START), self.now()).replace(
                    encode("CBR", ratio=10), b""
                )
            )
        else:
            self.losing = True
            self.run(value)
            self.losing = False
            self.reported_cycles = self.cycles
            self.send(encode("OVF") + encode("FUP", ip_bytes=3, payload=0x1000) + self.now())


@given(steps=st.lists(step, max_size=60), threshold=st.sampled_from([0, 0, 16, 128]))
def test_true_times_lie_within_bounds(steps: list[tuple[str, int]], threshold: int) -> None:
    clocks = Clocks(threshold)
    for each in steps:
        clocks.do(*each)
    one = stream(clocks.packets)
    columns = one.branches(timing=True).columns()
    times = one.branches().columns()["time"]
    assert (columns["earliest"] <= times).all()
    assert (times <= columns["latest"]).all()
    assert (times[1:] >= times[:-1]).all()
    truth = np.array(clocks.ran, np.uint64)
    assert len(columns["source"]) == len(truth)
    assert (columns["earliest"] <= truth).all()
    assert (truth <= columns["latest"]).all()


@pytest.mark.parametrize("every", [2, 3, 8, 64])
def test_bounds_of_omitted_mtcs_contain_their_times_on_a_processor(
    every: int, traces: Path
) -> None:
    """A trace of a Skylake-X, where each MTC has a CYC before it. Without most MTCs, the bounds at
    their offsets contain their times.
    """
    data = (traces / "dynamorio" / "pt.bin").read_bytes()

    def timing_samples(packets: bytes) -> TimingSamples:
        trace = rtit.decode(packets, rtit.Image(), mtc_freq=3, nom_freq=37, cpuid_15=(2, 308))
        flow = trace.streams[0].native_decoder(timing_samples=True)
        while flow.rows(1000) is not None:
            pass
        found = TimingSamples(flow)
        found.read_new()
        return found

    whole = timing_samples(data).rows
    times = dict(zip(whole["offset"].tolist(), whole["time"].tolist(), strict=True))
    packets = [packet for packet in scan(data) if isinstance(packet, Packet)]
    mtcs = [packet.offset for packet in packets if packet.name == "MTC"]
    left_out = [at for index, at in enumerate(mtcs[:-1]) if index % every]
    part = b"".join(
        data[start:end]
        for start, end in zip(
            [0, *(at + 2 for at in left_out)], [*left_out, len(data)], strict=True
        )
    )
    rest = timing_samples(part)
    # the CYC of each remains: after it, and before it
    where = np.array([at - 2 * index for index, at in enumerate(left_out)], np.uint64)
    cycs = np.searchsorted(rest.rows["offset"], where) - 1
    numbers, offsets = rest.rows["number"][cycs], rest.rows["offset"][cycs]
    _, earliest, latest = rest.time_bounds_of_rows(numbers, offsets - np.uint64(1))
    truth = np.array([times[at] for at in left_out], np.uint64)
    assert (earliest <= truth).all()
    assert (truth <= latest).all()
    assert (latest - earliest).max() <= 20 + every * 1232 / 64
