"""Random plans of runs: settings, parameters of form, overflows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rtit.unit.parameters.table import PEBS_BLOCK_ORDER, PSB_EVENTS, PSB_PLUS_ORDER, Parameters
from unit.world.program import Plan

FLAGS = ("OS", "User", "TSCEn", "MTCEn", "CYCEn", "PTWEn", "FUPonPTW", "PwrEvtEn", "EventEn")


@st.composite
def forms(draw: st.DrawFn) -> dict[str, Any]:
    """Draw parameters that affect the form of packets, never the path."""

    def one(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    order = tuple(draw(st.permutations(PSB_PLUS_ORDER)))
    return {
        "tnt_form": one("short", "long", "mixed"),
        "tnt_flush": one(0, 0, 1, 5),
        "tnt_flush_cycles": one(0, 0, 7, 100),
        "deferred_tips": one(0, 0, 1, 9),
        "ip_compression": one("shortest", "none", "sext48_only", "bdw"),
        "ret_compression_depth": one(64, 3, 0),
        "modeexec_suppress": one(True, False),
        "psb_on_enable_order": one("before_pge", "after_pge"),
        "psb_delay": one(0, 0, 100),
        "psb_extra": tuple(draw(st.lists(st.sampled_from(PSB_EVENTS), max_size=2))),
        "psb_plus_order": order,
        "cyc_counter_bits": one(12, 14, 19),
        "tsc_on_frequency_change": one(False, True),
        "psb_guard_pad": one(False, True),
        "pad_align": one(1, 1, 4, 16),
        "held_bytes": one(0, 0, 40),
        "evd_order": one("qr", "rq"),
        "pebs_block_order": tuple(draw(st.permutations(PEBS_BLOCK_ORDER))),
        "ovf_psb": one("changed", "always"),
    }


@st.composite
def plans(draw: st.DrawFn, *, overflows: bool = False) -> Plan:
    ctl = {name: draw(st.integers(0, 1)) for name in FLAGS} | {"BranchEn": 1, "OS": 1}
    # Mostly settings that trace much.
    levels = draw(st.sampled_from(((1, 1), (1, 1), (1, 0), (0, 1))))
    ctl |= {"OS": levels[0], "User": levels[1], "DisRETC": int(draw(st.integers(0, 3)) == 3)}
    ctl |= {"MTCFreq": draw(st.integers(0, 6)), "CycThresh": draw(st.sampled_from((0, 0, 5)))}
    names = ("conceal_execution", "conceal_entry", "conceal_exit")
    conceal = {name: draw(st.integers(0, 3)) == 3 for name in names}
    more: dict[str, Any] = {}
    often = 0.0
    if overflows:
        often = draw(st.sampled_from((0.05, 0.01, 0.0)))
        size = draw(st.sampled_from((0,) if often else (300, 700)))
        more = {"buffer_bytes": size, "drain_cycles": draw(st.integers(1, 20))}
        more |= {"ovf_resolve_level": draw(st.integers(0, size // 2))}
    parameters = Parameters(**draw(forms()), **more)
    seed, steps = draw(st.integers(0, 1 << 32)), draw(st.sampled_from((300, 100, 700)))
    return Plan(ctl, parameters, seed, steps, conceal, often)
