"""RESET (section 33.3.4)."""

from __future__ import annotations

from rtit.unit.core import Unit
from rtit.unit.enables import status, steering, trace_en
from rtit.unit.output import writing
from rtit.unit.packets import stream
from rtit.unit.state.last_branches import NO_BRANCHES
from rtit.unit.state.state import LVT_MASKED, NEVER


def reset(unit: Unit, *, cold: bool) -> None:
    """Power-on or warm RESET (section 33.3.4).

    Packets made so far go out; the end of the trace is not reported.
    """
    stream.flush(unit)
    writing.drain(unit)
    unit.put, unit.state.overflow = unit.packets.extend, None
    unit.state.overflow_until = NEVER
    steering.trigger_off(unit)
    trace_en.output_off(unit)
    if cold or not unit.profile.ip_filtering:
        unit.registers.reset_cold()
        status.take(unit)
        unit.state.context_en = unit.state.filter_en = False
        unit.state.global_status = 0
    else:
        unit.registers.reset_warm(unit.profile)
    state = unit.state
    state.host = state.smram = state.executive = state.acm = None
    state.asleep, state.dozing, state.ssa = False, False, ()
    state.xss, state.last_branches, state.lvt_pmi = 0, NO_BRANCHES, LVT_MASKED
