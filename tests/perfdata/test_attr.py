"""attr.config as text, and the conversion between TSC and perf clock."""

from __future__ import annotations

import pytest

from rtit.errors import UsageError
from rtit.perfdata import TimeConversion, format_config, parse_config
from rtit.perfdata.attr import config_value
from rtit.perfdata.aux import IntelPtInfo


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("", 0),
        # /sys/bus/event_source/devices/intel_pt/format on Linux 6
        ("pt", 1 << 0),
        ("cyc", 1 << 1),
        ("pwr_evt", 1 << 4),
        ("fup_on_ptw", 1 << 5),
        ("mtc", 1 << 9),
        ("tsc", 1 << 10),
        ("noretcomp", 1 << 11),
        ("ptw", 1 << 12),
        ("branch", 1 << 13),
        ("mtc_period=15", 15 << 14),
        ("cyc_thresh=15", 15 << 19),
        ("psb_period=15", 15 << 24),
        ("event", 1 << 31),
        ("notnt", 1 << 55),
        # attr.config of `perf record -e intel_pt//u` on two processors
        ("pt,mtc,tsc,branch,mtc_period=3,psb_period=3", 0x300E601),
        ("pt,tsc,branch", 0x2401),
        ("tsc,config=0x100", 0x500),
    ],
)
def test_config_terms_encode_and_decode(text: str, config: int) -> None:
    assert parse_config(text) == config
    assert parse_config(format_config(config)) == config
    assert format_config(config) == text


def test_config_term_with_value_0_clears_bits() -> None:
    assert parse_config("branch,mtc_period=3,branch=0,mtc_period=1") == 1 << 14
    assert config_value(0x300E601, "psb_period") == 3


@pytest.mark.parametrize("text", ["tsx", "tsc=2", "mtc_period=16", "tsc=", "=1", "tsc 1"])
def test_unknown_or_malformed_config_term_raises(text: str) -> None:
    with pytest.raises(UsageError):
        parse_config(text)


def test_mtc_period_is_decoded_by_mask() -> None:
    assert IntelPtInfo(mtc_freq_bits=0xF << 14).mtc_period(0x300E601) == 3
    assert IntelPtInfo().mtc_period(0x300E601) == 0


def test_tsc_converts_to_nanoseconds_and_back() -> None:
    """3 GHz: three ticks a nanosecond."""
    clock = TimeConversion(31, round((1 << 31) / 3), 1_000_000)
    assert clock.to_nanoseconds(0) == 1_000_000
    assert clock.to_nanoseconds(3_000_000_000) == pytest.approx(1_001_000_000, abs=2)
    assert clock.to_tsc(1_001_000_000) == pytest.approx(3_000_000_000, abs=6)


def test_clock_conversion_wraps_at_64_bits() -> None:
    """A machine whose TSC started before its clock has a negative time_zero."""
    clock = TimeConversion(10, 1024, (1 << 64) - 1000)
    assert clock.to_nanoseconds(1500) == 500
    assert clock.to_tsc(500) == 1500


@pytest.mark.parametrize("numbers", [(64, 1, 0), (0, 0, 0), (0, 1 << 32, 0), (0, 1, 1 << 64)])
def test_invalid_clock_parameters_raise(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="time_"):
        TimeConversion(*numbers)
    shift, mult, zero = numbers
    info = IntelPtInfo(time_shift=shift, time_mult=mult, time_zero=zero, cap_user_time_zero=1)
    assert info.time_conversion is None
