"""Values of parameters that cannot be; clocks that stop or change."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from rtit.errors import UsageError
from rtit.scenario import shipped
from rtit.unit import Parameters, TimeModel


@pytest.mark.parametrize(
    "wrong",
    [
        {"deferred_tips": 65},
        {"buffer_bytes": 255},
        {"drain_bytes": 0},
        {"drain_cycles": 0},
        {"ovf_resolve_level": 1},
        {"buffer_bytes": 512, "ovf_resolve_level": 257},
        {"ovf_resolve": "soon"},
        {"tnt_flush_cycles": -1},
        {"psb_extra": ("branch",)},
        {"filter_sequential": "always"},
        {"error_latency": -1},
        {"pmi_skid": -1},
        {"held_bytes": 65537},
        {"topa_cache": "all"},
        {"pad_align": 0},
        {"pad_align": 4097},
        {"ovf_psb": "yes"},
        {"tracestop_in_ovf": "lost"},
        {"pebs_block_order": (4, 5)},
        {"power_min_cstate": "C0.1"},
        {"deepest_cstate": 15},
        {"evd_order": "q"},
        {"cfe_pf_0to1": "maybe"},
        {"cfe_vmexit_0to1": "maybe"},
        {"modeexec_branch_nobranchen": "tip"},
        {"uintr_literal": "both"},
    ],
)
def test_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Parameters(**wrong)


def test_clocks_after_a_sleep() -> None:
    """10 cycles, then 4000 ticks of sleep: TSC, ART and cycles keep their relation."""
    time = TimeModel().slept(10, 4000)
    assert (time.tsc_at(10), time.tsc_at(15)) == (1_000_004_010, 1_000_004_015)
    assert time.art_at(10) == 25_000_100
    assert time.fast_counter_at(10) == 10
    assert time.cycle_of_art(25_000_104) == 160


@pytest.mark.spec("TIME-014")
def test_a_tsc_that_sleeps() -> None:
    time = TimeModel().slept(10, 4000, tsc_runs=False)
    assert time.tsc_at(10) == 1_000_000_010
    assert time.art_at(10) == 25_000_100


def test_clocks_after_a_frequency_change() -> None:
    """From cycle 100 on 20 x 100 MHz: a tick of the TSC is two cycles."""
    time = TimeModel().at_ratio(100, 20)
    assert (time.tsc_at(100), time.tsc_at(300)) == (1_000_000_100, 1_000_000_200)
    assert time.cycle_of_art(25_000_008) == 100 + 2 * 220
    assert time.core_ratio == 20
    with pytest.raises(UsageError, match="1 to 255"):
        time.at_ratio(0, 256)


def test_every_parameter_says_what_it_does_and_where_it_is_from() -> None:
    text = Parameters.__doc__ or ""
    entries = re.split(r"\n {6}(?=[a-z])", text)
    named: set[str] = set()
    for entry in entries[1:]:
        named |= set(re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b", entry))
    assert {field.name for field in fields(Parameters)} <= named


def test_every_value_of_every_parameter_is_shown_by_a_test() -> None:
    """A file of scenarios or tests of the unit names each value besides the default."""
    here = Path(__file__).parent.parent
    files = [*shipped(), *here.glob("unit/test_*.py")]
    words = [set(re.findall(r"\w+", path.read_text())) for path in files if path != Path(__file__)]
    hints = get_type_hints(Parameters)
    for field in fields(Parameters):
        choices = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else ()
        for value in set(choices) - {field.default}:
            assert any({field.name, value} <= each for each in words), f"{field.name} {value}"
        assert any(field.name in each for each in words), field.name
