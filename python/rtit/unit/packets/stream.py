"""The packet stream: an event ends with `commit`, time passes with `at`, and a PSB+ comes by byte
count (sections 33.3.6, 33.3.8 and 33.4.2.17).
"""

from __future__ import annotations

from rtit.errors import IllegalEvent
from rtit.unit.core import Unit
from rtit.unit.enables import steering
from rtit.unit.output import writing
from rtit.unit.packets import generator, overflow, psb, timing


def at(unit: Unit, clock: int) -> None:
    """`clock` instructions have retired by now. IllegalEvent if that is fewer than before."""
    state = unit.state
    cycle = clock * unit.time.cpi
    if cycle < state.cycle:
        raise IllegalEvent(f"the clock went back to {clock}, it was {state.cycle / unit.time.cpi}")
    if cycle < state.due:
        state.cycle = cycle
        return
    timing.catch_up(unit, cycle)
    # Between two events the current IP is not known: a PSB+ that tells it waits for the next.
    if state.packet_en:
        writing.write(unit)
    else:
        commit(unit)


def flush(unit: Unit) -> None:
    """Send what waits in the TNT buffer, as clearing TraceEn does (33.3.3, 33.4.2.1)."""
    generator.flush_tnt(unit)
    writing.write(unit)


def commit(unit: Unit) -> None:
    """An event is over: write its packets, and a PSB+ if the byte count says so."""
    if unit.packets:
        writing.write(unit)
    elif unit.state.overflow is not None:
        if unit.state.cycle < unit.state.overflow_until:
            return
        resolve_overflow(unit)
    if unit.state.packet_byte_count >= unit.configuration.psb_period:
        _psb_due(unit)


def resolve_overflow(unit: Unit, *, ends: bool = False) -> None:
    """The overflow is over; State.ip is the next instruction, unless tracing `ends` with it."""
    if unit.state.overflow is None:
        return
    if overflow.resolve(unit, ends=ends):
        put_psb(unit)
    writing.write(unit)
    steering.settle(unit)


def _psb_due(unit: Unit) -> None:
    state, configuration = unit.state, unit.configuration
    if configuration.inject:
        state.pend_psb = True
    if not state.trigger_en or state.overflow is not None:
        return
    if state.packet_byte_count >= configuration.psb_period + unit.parameters.psb_delay:
        state.packet_byte_count %= configuration.psb_period
        send_psb(unit)
        steering.settle(unit)


def extra_psb(unit: Unit, event: str) -> None:
    """The PSB+ that Parameters.psb_extra puts after an `event`."""
    state = unit.state
    if event in unit.parameters.psb_extra and state.trigger_en and state.overflow is None:
        send_psb(unit)


def send_psb(unit: Unit) -> None:
    """A PSB+ goes out, whatever the byte count says."""
    put_psb(unit)
    writing.write(unit)


def put_psb(unit: Unit) -> None:
    """A PSB+ joins the packets of the event at hand."""
    size = psb.insert(unit)
    unit.state.pend_psb = False
    if not unit.parameters.psb_counts_itself:
        unit.state.packet_byte_count -= size
