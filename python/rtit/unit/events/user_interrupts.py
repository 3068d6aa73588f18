"""User interrupts and UIRET (Table 33-50; Table 33-55 rows 26 and 27)."""

from __future__ import annotations

from rtit.unit.core import Unit
from rtit.unit.enables import steering
from rtit.unit.events import event_trace, transfers
from rtit.unit.events.event_trace import Cfe, Report
from rtit.unit.packets import generator, stream
from rtit.unit.refusal import addresses

UIRET_LENGTH = 4
"""Bytes of the instruction: F3 0F 01 EC."""


def user_interrupt(unit: Unit, ip: int, handler: int, vector: int) -> None:
    """A user interrupt is delivered before the instruction at `ip`.

    Row 26 shows its FUP alone, from which nobody could tell where it goes:
    Parameters.uintr_literal.
    """
    if _literal(unit):
        _stand_alone(unit, ip, handler, Report(Cfe.UINTR, vector))
        return
    arch = unit.state.arch
    transfers.transfer(unit, handler, arch, event_ip=ip, report=Report(Cfe.UINTR, vector))


def uiret(unit: Unit, ip: int, target: int) -> None:
    """UIRET at `ip`; row 27 shows a FUP alone, and with its next IP."""
    if _literal(unit):
        _stand_alone(unit, ip + UIRET_LENGTH, target, Report(Cfe.UIRET))
        return
    transfers.transfer(unit, target, unit.state.arch, report=Report(Cfe.UIRET), report_ip=ip)


def _literal(unit: Unit) -> bool:
    return unit.parameters.uintr_literal == "table" and unit.state.packet_en


def _stand_alone(unit: Unit, ip: int, target: int, report: Report) -> None:
    addresses(ip, target)
    generator.flush_tnt(unit)
    source = steering.address(unit, ip)
    event_trace.send(unit, report, before=True, after=True, ip=source, branch_fup=True)
    generator.fup(unit, source)
    unit.state.ip = steering.address(unit, target)
    stream.commit(unit)
