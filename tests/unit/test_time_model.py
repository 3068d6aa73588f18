"""The clocks (section 33.8.3.1), the parameters, and the architectural state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.errors import UsageError
from rtit.unit.arch_state import ArchState
from rtit.unit.parameters.table import Parameters
from rtit.unit.time_model import TimeModel


@pytest.mark.spec("TIME-001", "TIME-003", "TIME-004")
@given(
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(-(1 << 30), 1 << 30),
)
def test_tsc_is_crystal_clocks_and_ticks_since(
    cycle: int, start: int, p1: int, ratio: int, offset: int
) -> None:
    time = TimeModel(
        tsc_start=start,
        tsc_adjust=offset,
        crystal_hz=25_000_000,
        tsc_numerator=4 * p1,
        tsc_denominator=1,
        max_non_turbo_ratio=p1,
        core_ratio=ratio,
    )
    fast = time.fast_counter_at(cycle)
    assert 0 <= fast < 4 * p1
    total = time.art_at(cycle) * 4 * p1 + fast + offset
    assert time.tsc_at(cycle) == total % (1 << 64)


@pytest.mark.spec("TIME-015")
@pytest.mark.parametrize(("p1", "ratio"), [(10, 10), (24, 39), (30, 8)])
def test_tsc_runs_at_p1_at_any_core_frequency(p1: int, ratio: int) -> None:
    """A second has P1 x bus clock ticks, and CBR x bus clock core cycles."""
    time = TimeModel(tsc_numerator=8 * p1, max_non_turbo_ratio=p1, core_ratio=ratio)
    assert time.tsc_hz == p1 * 100_000_000
    second = ratio * 100_000_000
    assert time.tsc_at(second) - time.tsc_at(0) == time.tsc_hz


@given(st.integers(0, 1 << 40), st.integers(0, 10_000_000), st.sampled_from((1, 2, 3)))
def test_cycle_of_art_is_the_first_cycle_of_that_tick(
    start: int, cycle: int, denominator: int
) -> None:
    time = TimeModel(
        tsc_start=start,
        crystal_hz=12_500_000 * denominator,
        tsc_numerator=80,
        tsc_denominator=denominator,
        core_ratio=7,
    )
    art = time.art_at(cycle) + 1
    first = time.cycle_of_art(art)
    assert first > cycle
    assert time.art_at(first) >= art > time.art_at(first - 1)


def test_nanoseconds_convert_to_tsc_ticks() -> None:
    time = TimeModel()
    assert time.tsc(1234) == 1_000_001_234
    assert time.nanoseconds(1234) == 1_000_001_234
    assert TimeModel(cpi=3).tsc(1000) == 1_000_003_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpi": 0},
        {"core_ratio": 256},
        {"max_non_turbo_ratio": 256, "crystal_hz": 100_000_000, "tsc_numerator": 512},
        {"tsc_start": -1},
        {"crystal_hz": 24_000_000},
        {"crystal_hz": 1_000_000, "tsc_numerator": 1026, "bus_hz": 51_300_000},
    ],
)
def test_impossible_clocks_are_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        TimeModel(**wrong)


@pytest.mark.parametrize(
    "last",
    [
        {"core_ratio": 255},
        {"max_non_turbo_ratio": 255, "crystal_hz": 100_000_000, "tsc_numerator": 510},
        {"crystal_hz": 1_000_000, "tsc_numerator": 1024, "bus_hz": 51_200_000},
        {
            "crystal_hz": 1_000_000,
            "tsc_numerator": 2048,
            "tsc_denominator": 4,
            "bus_hz": 51_200_000,
        },
        {"cpi": 1, "tsc_start": 0},
    ],
)
def test_largest_clocks_are_accepted(last: dict[str, int]) -> None:
    for name, value in last.items():
        assert getattr(TimeModel(**last), name) == value


@pytest.mark.parametrize(
    "wrong",
    [
        {"tnt_form": "medium"},
        {"tnt_flush": 7},
        {"ret_compression_depth": 65},
        {"psb_delay": -1},
        {"psb_plus_order": ("TSC",)},
        {"cyc_counter_bits": 20},
        {"cyc_max_bytes": 1},
        {"ip_compression": "zip"},
    ],
)
def test_impossible_parameters_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong)).split("_")[0]):
        Parameters(**wrong)  # type: ignore[arg-type]


@pytest.mark.spec("MODE-002")
def test_code_width_selects_mode_exec_bits() -> None:
    assert [ArchState().with_code_bits(bits).mode_exec for bits in (16, 32, 64)] == [0, 2, 1]
    assert [ArchState().with_code_bits(bits).bits for bits in (16, 32, 64)] == [16, 32, 64]
    with pytest.raises(UsageError):
        ArchState(cs_l=False, lma=False).with_code_bits(64)
    with pytest.raises(UsageError):
        ArchState(cs_l=True, cs_d=True)
    with pytest.raises(UsageError):
        ArchState(cpl=4)


def test_clocks_keep_their_relation_after_a_sleep() -> None:
    """10 cycles, then 4000 ticks of sleep."""
    time = TimeModel().after_sleep(10, 4000)
    assert (time.tsc_at(10), time.tsc_at(15)) == (1_000_004_010, 1_000_004_015)
    assert time.art_at(10) == 25_000_100
    assert time.fast_counter_at(10) == 10
    assert time.cycle_of_art(25_000_104) == 160


@pytest.mark.spec("TIME-014")
def test_tsc_may_stop_during_sleep_while_art_continues() -> None:
    time = TimeModel().after_sleep(10, 4000, tsc_runs=False)
    assert time.tsc_at(10) == 1_000_000_010
    assert time.art_at(10) == 25_000_100


def test_frequency_change_scales_cycles() -> None:
    """From cycle 100 on 20 x 100 MHz: a tick of the TSC is two cycles."""
    time = TimeModel().with_core_ratio(100, 20)
    assert (time.tsc_at(100), time.tsc_at(300)) == (1_000_000_100, 1_000_000_200)
    assert time.cycle_of_art(25_000_008) == 100 + 2 * 220
    assert time.core_ratio == 20
    with pytest.raises(UsageError, match="1 to 255"):
        time.with_core_ratio(0, 256)
