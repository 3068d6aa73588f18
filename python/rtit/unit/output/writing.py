"""Packets go to the output, through the internal buffers (sections 33.3.3 and 33.3.8), and what it
answers sets Stopped, Error and the PMI (33.2.7.2, 33.3.10).
"""

from __future__ import annotations

from rtit.unit.core import Unit
from rtit.unit.enables import steering
from rtit.unit.output import pmi
from rtit.unit.output.output import OK, OutputResult
from rtit.unit.packets import overflow


def write(unit: Unit, *, drained: bool = False) -> None:
    """Hand the packets to the output, shaped by Parameters.pad_align and held_bytes.

    `drained`: they have been through that, and through the internal buffer.
    """
    data = bytes(unit.packets)
    if not data:
        return
    unit.packets.clear()
    if not drained:
        if unit.bounded and not overflow.has_room(unit, len(data)):
            overflow.begin(unit, until=overflow.drained_at(unit))
            return
        if unit.shapes:
            data = _shaped(unit, data)
    state = unit.state
    state.told = unit.telling
    waits = state.pmi_left is not None
    result = unit.output.write(data)
    state.packet_byte_count += len(data)
    if result is not OK:
        state.packet_byte_count -= result.lost
        take_result(unit, result)
    if waits and pmi.passed(unit, len(data)):
        signal_pmi(unit)
    if state.packet_byte_count >= unit.configuration.psb_period:
        state.plain = False


def drain(unit: Unit) -> None:
    """What internal buffers hold goes to the output (section 33.3.3)."""
    held, unit.state.held = unit.state.held, b""
    if held and unit.output.state.enabled:
        unit.packets += held
        write(unit, drained=True)


def _shaped(unit: Unit, data: bytes) -> bytes:
    """`data` with PADs behind it, and what is held before it instead of its own end."""
    data = unit.state.held + data + bytes(-len(data) % unit.parameters.pad_align)
    kept = max(0, len(data) - unit.parameters.held_bytes)
    unit.state.held = data[kept:]
    return data[:kept]


def take_result(unit: Unit, result: OutputResult) -> None:
    """What the output answers becomes Stopped, Error and PMI."""
    if result.stopped:
        unit.state.stopped = True
    if result.error is not None:
        unit.state.error = True
    ended = result.stopped or result.error is not None
    if ended:
        unit.packets.clear()
        unit.state.held = b""
        steering.trigger_off(unit)
    # The handler of a PMI finds Stopped set (section 33.2.7.2).
    if result.pmi and unit.parameters.pmi_skid and not ended:
        pmi.pend(unit)
    elif result.pmi or (ended and unit.state.pmi_left is not None):
        signal_pmi(unit)


def signal_pmi(unit: Unit) -> None:
    """A ToPA PMI is signalled, and Unit.on_pmi called."""
    pmi.signal(unit)
    if unit.on_pmi is not None:
        unit.on_pmi()
