"""Event options are checked against the features of a processor."""

from __future__ import annotations

import pytest

from rtit.capture.options import PtOptions
from rtit.errors import UsageError
from rtit.registers import BROADWELL, SKYLAKE, Profile

PLAIN = Profile("plain", topa=True)
TIMED = Profile(
    "timed",
    topa=True,
    psb_cyc=True,
    mtc=True,
    mtc_periods=0b10_0100_1001,
    cyc_thresholds=0b1_1111,
    psb_periods=0b11_1111,
)


def test_default_options_equal_perfs_on_the_processor() -> None:
    # attr.config of perf.data files recorded with intel_pt//u on these processors
    assert PtOptions.parse("intel_pt//u", profile=BROADWELL).attr_config == 0x2401
    assert PtOptions.parse("intel_pt//u", profile=SKYLAKE).attr_config == 0x300E601


def test_default_periods_are_lowered_to_the_nearest_supported() -> None:
    few = Profile("few", topa=True, psb_cyc=True, mtc=True, mtc_periods=0b101, psb_periods=0b10)
    options = PtOptions.parse("intel_pt//u", profile=few)
    assert (options.mtc_period, options.psb_period) == (2, 1)


@pytest.mark.parametrize(
    ("terms", "valid"),
    [
        ("mtc_period=4", "valid values: 0, 3, 6, 9$"),
        ("cyc,cyc_thresh=5", "valid values: 0, 1, 2, 3, 4$"),
        ("psb_period=6", "valid values: 0, 1, 2, 3, 4, 5$"),
    ],
)
def test_encoding_outside_the_bitmap_is_rejected(terms: str, valid: str) -> None:
    with pytest.raises(UsageError, match=valid):
        PtOptions.parse(f"intel_pt/{terms}/u", profile=TIMED)


@pytest.mark.parametrize(
    "term", ["cyc", "mtc", "psb_period=1", "ptw", "fup_on_ptw", "pwr_evt", "event", "notnt"]
)
def test_missing_capability_is_named_in_the_error(term: str) -> None:
    name = term.partition("=")[0]
    with pytest.raises(UsageError, match=f"^{name} is not supported by processor plain$"):
        PtOptions.parse(f"intel_pt/{term}/u", profile=PLAIN)


def test_encoding_zero_is_always_valid() -> None:
    PtOptions.parse("intel_pt/mtc_period=0,psb_period=0,cyc,cyc_thresh=0/u", profile=TIMED)
