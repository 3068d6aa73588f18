"""IA32_RTIT_STATUS and the output pointers: registers that the unit writes (section 33.2.8.4)."""

from __future__ import annotations

from rtit.registers import STATUS
from rtit.unit.core import Unit


def publish(unit: Unit) -> None:
    """Bring the registers that the unit writes up to date: before somebody reads them."""
    state, registers = unit.state, unit.registers
    count = state.packet_byte_count & 0x1FFFF if unit.profile.psb_cyc else 0
    registers.status = STATUS.encode(
        FilterEn=state.filter_en,
        ContextEn=state.context_en,
        TriggerEn=state.trigger_en,
        Error=state.error and state.cycle >= state.error_shown,
        Stopped=state.stopped,
        PendPSB=state.pend_psb,
        PendTopaPMI=state.pend_topa_pmi,
        PacketByteCnt=count,
    )
    if unit.output.state.enabled:
        registers.output_base, registers.output_mask_ptrs = unit.output.msrs()


def take(unit: Unit) -> None:
    """Go on from what software has written to IA32_RTIT_STATUS."""
    status, state = STATUS.decode(unit.registers.status), unit.state
    state.error = bool(status.Error)
    state.stopped = bool(status.Stopped)
    state.pend_psb = bool(status.PendPSB)
    state.pend_topa_pmi = bool(status.PendTopaPMI)
    state.packet_byte_count = status.PacketByteCnt
