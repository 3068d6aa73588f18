"""Tracing goes off in user code whose thread got the CPU since the last timing packet."""

from __future__ import annotations

import pytest

from rtit.image import Image, Images
from rtit.packets import encode
from rtit.sideband import IntervalList, SchedulingInterval
from rtit.trace.recording.byte_source import MemorySource
from rtit.trace.recording.decoder_settings import Settings
from rtit.trace.stream import Stream
from rtit.trace.threads.schedule import ThreadSchedule, ThreadScope

CR3, AT = 0x5000, 0x40_1000
INTERVALS = [SchedulingInterval(0, 1, 1), SchedulingInterval(150, 2, 2)]


@pytest.mark.parametrize("has_space", [True, False])
def test_only_code_that_cr3_selects_may_continue_over_a_switch(has_space: bool) -> None:
    header = encode("PSB") + encode("TSC", tsc=100) + encode("PIP", cr3=CR3, nr=0)
    start = encode("FUP", ip_bytes=6, payload=AT)
    end = start + encode("TIP.PGD", ip_bytes=0)
    packets = header + b"\x99\x01" + start + encode("PSBEND") + encode("TSC", tsc=200) + end
    code = Image().add_pages({AT: b"\xeb\xfe"})
    schedule = ThreadSchedule(IntervalList(INTERVALS), Images(), user_code_only=False)
    stream = Stream(
        MemorySource(packets),
        Image(),
        Settings(),
        thread_scope=ThreadScope(schedule),
        spaces={CR3: code} if has_space else {},
    )
    gaps = [str(span) for span in stream.ledger() if span.is_gap]
    assert any("yet user code continued" in each for each in gaps) is not has_space
