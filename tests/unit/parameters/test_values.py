"""Invalid values of parameters, and values that no test covers."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from rtit.errors import UsageError
from rtit.scenario import shipped_scenarios
from rtit.unit.parameters.table import Parameters


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
def test_impossible_parameters_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Parameters(**wrong)


def test_every_value_of_every_parameter_has_a_test() -> None:
    """A file of scenarios or tests of the unit names each value besides the default."""
    here = Path(__file__).parent
    files = [path for path in here.parent.rglob("test_*.py") if path.parent != here]
    words = [set(re.findall(r"\w+", path.read_text())) for path in [*shipped_scenarios(), *files]]
    hints = get_type_hints(Parameters)
    for field in fields(Parameters):
        choices = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else ()
        for value in set(choices) - {field.default}:
            assert any({field.name, value} <= each for each in words), f"{field.name} {value}"
        assert any(field.name in each for each in words), field.name
