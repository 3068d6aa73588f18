"""Times as perf computes them; `tests/differential/test_perf_times.py` compares with perf."""

from __future__ import annotations

import numpy as np
import pytest

import rtit
from rtit.packets import encode
from support.limits import assert_peak_memory

MTCS = 100_000
TICKS = 10


def test_perf_time_is_that_of_the_last_timing_packet() -> None:
    """A loop of one branch with an MTC before each: perf uses the last time before the branch's
    packet.
    """
    begin = encode("PSB") + encode("TSC", tsc=1000) + encode("TMA", ctc=0, fast_counter=0)
    begin += encode("FUP", ip_bytes=6, payload=0x1000) + encode("PSBEND")
    round_ = b"".join(
        encode("MTC", ctc=ctc % 256) + encode("TNT", bits="T") for ctc in range(1, 257)
    )
    packets = round_ * (MTCS // 256 + 1)
    image = rtit.Image().add(0x1000, b"\x75\xfe")
    (stream,) = rtit.decode(begin + packets[: MTCS * 3], image, cpuid_15=(1, TICKS)).streams
    columns = stream.instructions(perf_time=True).columns()
    assert columns["perf_time"].tolist() == (1000 + TICKS * np.arange(1, MTCS + 1)).tolist()
    # ours is the begin of the run
    assert (columns["time"] <= columns["perf_time"]).all()


# 1000 nop; 1001 jmp rax
INDIRECT = rtit.Image().add(0x1000, b"\x90\xff\xe0")


def tip(name: str) -> bytes:
    return encode(name, ip_bytes=6, payload=0x1000)


def test_timing_packets_without_code_take_no_memory() -> None:
    """The program runs outside the filter. Pending samples are bounded: all of them would take
    twice the memory.
    """
    count = 1 << 22
    begin = encode("PSB") + encode("TSC", tsc=1000) + encode("TMA", ctc=0, fast_counter=0)
    begin += tip("FUP") + encode("PSBEND") + tip("TIP")
    away = b"".join(encode("MTC", ctc=ctc) for ctc in [*range(1, 256), 0]) * (count // 256)
    (stream,) = rtit.decode(
        begin + away + tip("TIP") + tip("TIP"), INDIRECT, cpuid_15=(1, TICKS)
    ).streams
    with assert_peak_memory(160):
        found = stream.instructions(perf_time=True).columns()["perf_time"].tolist()
    end = 1000 + TICKS * count
    assert found == [1000, 1000, 1000, end, end, end]


def test_perf_time_near_the_maximum_tsc_does_not_wrap() -> None:
    """At the start of user code perf adds two ticks for each of four instructions before; the TSC
    has 64 bits. The branch that ended tracing has the time of the packet, which is later.
    """
    most = (1 << 64) - 1
    begin = encode("PSB") + encode("TSC", tsc=(1 << 56) - 1) + tip("FUP") + encode("PSBEND")
    off = encode("TIP.PGD", ip_bytes=0) + tip("TIP.PGE")
    packets = begin + tip("TIP") + off + tip("TIP") + off + tip("TIP")
    (stream,) = rtit.decode(packets, INDIRECT, start_time=most).streams
    found = stream.instructions(perf_time=True).columns()["perf_time"].tolist()
    assert found == [*[most] * 4, *[2 * 4 - 1] * 3, most, *[2 * 8 - 1] * 2]


@pytest.mark.parametrize("multiplier", [1 << 48, 0])
def test_guest_with_unscaled_tsc(multiplier: int) -> None:
    """A multiplier of 0 means no scaling."""
    begin = encode("PSB") + encode("TSC", tsc=1000) + tip("FUP") + encode("PSBEND")
    guest = encode("PIP", nr=1, cr3=0) + encode("TSC", tsc=3000 + 5)
    packets = begin + guest + tip("TIP")
    (stream,) = rtit.decode(packets, INDIRECT, guest_tsc=(5, multiplier)).streams
    assert stream.instructions(perf_time=True).columns()["perf_time"].tolist() == [1000, 3000]


def test_missing_perf_times_fall_back_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged streams of several threads may lack them; all decoded rows remain."""
    packets = encode("PSB") + encode("TSC", tsc=1000) + tip("FUP") + encode("PSBEND") + tip("TIP")
    (stream,) = rtit.decode(packets, INDIRECT).streams
    one = np.array([7], np.uint64)
    monkeypatch.setattr("rtit.trace.time.perf_time.perf_times", lambda *_: iter([one]))
    columns = stream.instructions(perf_time=True).columns()
    assert columns["perf_time"].tolist() == [7, *columns["time"].tolist()[1:]]
    assert len(columns["ip"]) == 2
