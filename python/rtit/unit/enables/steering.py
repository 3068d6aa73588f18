"""The enables as events change them (sections 33.2.6 and 33.2.5): where an event lands decides
whether packets come, and whether tracing stops.
"""

from __future__ import annotations

from rtit.unit.core import Unit
from rtit.unit.enables import conditions
from rtit.unit.packets import generator, overflow, timing
from rtit.unit.state.arch import Arch


def address(unit: Unit, ip: int) -> int:
    """An effective IP of the present code as packets and ranges have it (section 33.3.1.1)."""
    if unit.state.arch.linear_base and unit.profile.lip:
        return unit.state.arch.linear(ip)
    return ip


def steer(unit: Unit, ip: int) -> bool:
    """Set the enables for a branch or event that lands at `ip`; True if it meets TraceStop."""
    state, configuration = unit.state, unit.configuration
    state.context_en = conditions.context_en(configuration, state.arch)
    stops = False
    if state.context_en:
        stops = configuration.ranges.stops(ip)
        state.filter_en = not stops and configuration.ranges.filter_en(ip)
    settle(unit)
    return stops


def trace_stop(unit: Unit) -> None:
    """The TraceStop action (section 33.4.2.9); `steer` has cleared FilterEn."""
    timing.last_cyc(unit)
    generator.trace_stop(unit)
    overflow.stopped(unit)
    unit.state.stopped = True
    trigger_off(unit)


def settle(unit: Unit) -> None:
    """PacketEn follows from the other enables."""
    state, configuration = unit.state, unit.configuration
    state.packet_en = conditions.packet_en(state, configuration)
    state.plain = conditions.is_plain(state, configuration)


def trigger_off(unit: Unit) -> None:
    """TriggerEn is 0: nothing is sent any more, and what waited is lost."""
    state = unit.state
    state.trigger_en = state.packet_en = state.plain = False
    generator.forget(unit)
    timing.stop(unit)


def go(unit: Unit, target: int, arch: Arch) -> None:
    """The processor is in another context; nothing is sent."""
    unit.state.arch = arch
    unit.state.ip = address(unit, target)
