"""Save and restore a trace unit as a value. Memory is not included."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.registers import RegisterFile
from rtit.unit.core import Unit
from rtit.unit.events.trace_control import load_configuration, update_status_register
from rtit.unit.output import OutputState
from rtit.unit.overflow import discard_packet
from rtit.unit.state import UnitState
from rtit.unit.time_model import TimeModel


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A trace unit between two events, without the contents of memory."""

    state: UnitState
    registers: RegisterFile
    output: OutputState
    time: TimeModel


def snapshot(unit: Unit) -> Snapshot:
    """Return the present state as a value."""
    update_status_register(unit)
    return Snapshot(unit.state.copy(), unit.registers.copy(), unit.output.snapshot(), unit.time)


def restore(unit: Unit, snapshot: Snapshot) -> None:
    """Replace the state by that of a snapshot. The unit continues exactly as the original."""
    unit.registers.restore(snapshot.registers)
    unit.output.restore(snapshot.output)
    unit.state.assign_all_fields(snapshot.state)
    unit.time = snapshot.time
    unit.packets.clear()
    unit.pending_knowledge = unit.state.decoder_knowledge
    unit.emit = unit.packets.extend if unit.state.overflow is None else discard_packet
    load_configuration(unit)
