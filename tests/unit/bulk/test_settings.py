"""The bulk unit accepts Python's settings, and rejects unsupported ones with a message."""

from __future__ import annotations

from typing import Any

import pytest

from rtit._core import BulkUnit
from rtit.capture.events import EVENT_RECORD, EventKind
from rtit.capture.options import PtOptions
from rtit.packets import iterate_packets
from rtit.unit.parameters.table import Parameters
from rtit.unit.time_model import TimeModel

PARAMETERS = (
    "tnt_form",
    "tnt_flush",
    "ip_compression",
    "ret_compression_depth",
    "modeexec_suppress",
    "tracestop_pgd_ip",
    "psb_on_enable_order",
    "psb_delay",
    "psb_plus_order",
    "compress_after_psb",
    "psb_counts_itself",
    "cyc_counter_bits",
    "cyc_max_bytes",
)
"""Parameters of packets that user mode can generate."""
CLOCKS = (
    "cpi",
    "tsc_start",
    "tsc_adjust",
    "crystal_hz",
    "tsc_numerator",
    "tsc_denominator",
    "bus_hz",
    "max_non_turbo_ratio",
    "core_ratio",
)
"""Fields that determine times in packets; perf's conversion is not one of them."""


def test_fields_of_the_reference_are_settings() -> None:
    time = {name: getattr(TimeModel(), name) for name in CLOCKS}
    parameters = {name: getattr(Parameters(), name) for name in PARAMETERS}
    unit = BulkUnit(ctl=PtOptions().rtit_ctl, **time, **parameters)
    unit.feed(EVENT_RECORD.pack(EventKind.RESUME, 0, 0, 1, 0, 0x40_1000, 5, 0))
    packet_bytes = unit.take_output()
    default = BulkUnit()
    default.feed(EVENT_RECORD.pack(EventKind.RESUME, 0, 0, 1, 0, 0x40_1000, 5, 0))
    assert packet_bytes == default.take_output()
    assert [p.name for p in iterate_packets(packet_bytes)][-2:] == ["MODE.Exec", "TIP.PGE"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ctl": 1 << 0}, "ctl is .*, not 0x1"),
        ({"ctl": 1 << 6}, "ctl is .*, not 0x40"),
        ({"ctl": -1}, "ctl is a number of at most 64 bits, not"),
        ({"tnt_form": "wide"}, "tnt_form is one of short, long, mixed"),
        ({"tnt_flush": 7}, "tnt_flush is 0 to 6, not 7"),
        ({"core_ratio": 0}, "core_ratio is 1 to 255, not 0"),
        ({"crystal_hz": 24_000_000}, "crystal_hz is such that"),
        ({"psb_plus_order": ("TSC",) * 6}, "psb_plus_order is each packet once"),
        ({"stop": 0}, "stop is 1 to"),
        ({"colour": 1}, "no setting is called"),
    ],
)
def test_impossible_settings_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BulkUnit(**given)


def test_impossible_ranges_are_rejected() -> None:
    unit = BulkUnit()
    with pytest.raises(ValueError, match="at most 4 address ranges, not 5"):
        unit.set_ranges([(1, 0, 9)] * 5)
    with pytest.raises(ValueError, match="ADDRn_CFG is 1 or 2, not 3"):
        unit.set_ranges([(3, 0, 9)])


def test_malformed_records_are_rejected() -> None:
    unit = BulkUnit()
    good = EVENT_RECORD.pack(EventKind.RESUME, 0, 0, 1, 0, 0x40_1000, 5, 0)
    early = EVENT_RECORD.pack(EventKind.JUMP, 0, 2, 1, 0x40_1000, 0x40_1010, 4, 0)
    with pytest.raises(ValueError, match=r"at 0x28: the clock went back to 4, it was 5"):
        unit.feed(good + early)
    assert unit.written > 0
    with pytest.raises(ValueError, match=r"at 0x28 has 7 bytes of 40"):
        unit.feed(good + bytes(7))
    with pytest.raises(ValueError, match=r"at 0x0: no capture event has kind 99"):
        unit.feed(bytes((99,)) + bytes(39))
