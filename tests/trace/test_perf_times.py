"""Times as perf has them; `tests/differential/test_perf_times.py` asks perf itself."""

from __future__ import annotations

import numpy as np

import rtit
from rtit.packets import encode

MTCS = 100_000
TICKS = 10


def test_however_many_timing_packets() -> None:
    """A loop of one branch, an MTC before each: perf has the time told right before its packet."""
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
    # ours is when its run began
    assert (columns["time"] <= columns["perf_time"]).all()
