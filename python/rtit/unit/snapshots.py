"""A unit by value, to go on from later."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.registers import RegisterFile
from rtit.unit.core import Unit
from rtit.unit.events.trace_control import load_configuration, update_status_register
from rtit.unit.output import OutputState
from rtit.unit.overflow import discard_packet
from rtit.unit.state import State
from rtit.unit.time_model import TimeModel


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A unit between two events, by value; what lies in memory is no part of it."""

    state: State
    registers: RegisterFile
    output: OutputState
    time: TimeModel


def snapshot(unit: Unit) -> Snapshot:
    """The unit as it is now, by value."""
    update_status_register(unit)
    return Snapshot(unit.state.copy(), unit.registers.copy(), unit.output.snapshot(), unit.time)


def restore(unit: Unit, snapshot: Snapshot) -> None:
    """Become what the snapshot says; the unit goes on exactly as the one it was taken from."""
    unit.registers.restore(snapshot.registers)
    unit.output.restore(snapshot.output)
    unit.state.assign(snapshot.state)
    unit.time = snapshot.time
    unit.packets.clear()
    unit.pending_knowledge = unit.state.decoder_knowledge
    unit.emit = unit.packets.extend if unit.state.overflow is None else discard_packet
    load_configuration(unit)
