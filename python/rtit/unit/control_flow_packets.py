"""Emit one control-flow or context packet: TNT, TIP, FUP, PIP, MODE, VMCS, TraceStop
(sections 33.4.2.1 to 33.4.2.9, 33.4.2.15).

A function here emits its packet unconditionally, and updates LastIP, the TNT buffer, the call stack
and the decoder's knowledge. Callers decide whether a packet is due. Packets other than TNT must
follow `flush_tnt`, because the decoder consumes the TNT results first.
"""

from __future__ import annotations

from collections.abc import Callable

from rtit.packets import encode, encode_tnt, encoder
from rtit.unit.compression import compress_ip
from rtit.unit.core import Unit
from rtit.unit.state import DecoderKnowledge

_SHORT_TNT = [b"", b""] + [
    encode_tnt(tnt.bit_length() - 1, tnt - (1 << (tnt.bit_length() - 1))) for tnt in range(2, 128)
]
"""Short TNTs by the value of State.tnt."""

_TIP = encoder("TIP")
_TIP_PGE = encoder("TIP.PGE")
_TIP_PGD = encoder("TIP.PGD")
_FUP = encoder("FUP")
_PIP = encoder("PIP")
_VMCS = encoder("VMCS")
_MODE_EXEC = encoder("MODE.Exec")
_MODE_TSX = encoder("MODE.TSX")
_TRACE_STOP = encode("TraceStop")
_PGD_SUPPRESSED = encode("TIP.PGD", ip_bytes=0)

_CR3_51_5 = 0x000F_FFFF_FFFF_FFE0
_CR3_51_12 = 0x000F_FFFF_FFFF_F000
_NO_POINTER = 0x000F_FFFF_FFFF_F000


def flush_tnt(unit: Unit) -> None:
    """Emit the buffered TNT results (section 33.4.2.1), then the deferred TIPs."""
    state = unit.state
    tnt = state.tnt
    if tnt == 1:
        if state.deferred_tips:
            _emit_deferred_tips(unit)
        return
    if tnt < 128 and unit.parameters.tnt_form != "long":
        unit.emit(_SHORT_TNT[tnt])
    else:
        count = tnt.bit_length() - 1
        unit.emit(encode_tnt(count, tnt - (1 << count), long=True))
    state.tnt = 1
    if state.deferred_tips:
        _emit_deferred_tips(unit)


def emit_tip(unit: Unit, target: int) -> None:
    """Emit TIP (section 33.4.2.2)."""
    _emit_ip_packet(unit, _TIP, target)


def defer_tip(unit: Unit, target: int) -> None:
    """Defer a TIP until the TNT buffer is full or another packet is emitted (section 33.4.2.3)."""
    state = unit.state
    ip_bytes, payload = compress_ip(target, state.last_ip, unit.ip_encodings)
    state.last_ip = target
    state.deferred_tips += _TIP(ip_bytes, payload)
    state.deferred_count += 1
    if state.deferred_count >= unit.parameters.deferred_tips:
        flush_tnt(unit)


def discard_pending(unit: Unit) -> None:
    """Discard buffered TNT results, deferred TIPs and the call stack."""
    state = unit.state
    state.tnt = 1
    state.deferred_tips, state.deferred_count = b"", 0
    state.ret_stack.clear()


def emit_tip_pge(unit: Unit, ip: int) -> None:
    """Emit TIP.PGE (section 33.4.2.4), after a MODE.Exec if the decoder cannot know the mode."""
    if not unit.parameters.modeexec_suppress or unit.pending_knowledge.mode != mode_exec_bits(unit):
        emit_mode_exec(unit)
    _emit_ip_packet(unit, _TIP_PGE, ip)


def emit_tip_pgd(unit: Unit, target: int | None) -> None:
    """Emit TIP.PGD (section 33.4.2.5); `target` None suppresses the IP.

    The call stack is cleared: no earlier CALL compresses a later RET.
    """
    unit.state.ret_stack.clear()
    if target is None:
        unit.emit(_PGD_SUPPRESSED)
    else:
        _emit_ip_packet(unit, _TIP_PGD, target)


def emit_fup(unit: Unit, ip: int) -> None:
    """Emit FUP (section 33.4.2.6)."""
    _emit_ip_packet(unit, _FUP, ip)


def emit_pip(unit: Unit, *, entry: bool = False) -> None:
    """Emit PIP with the current CR3 (section 33.4.2.7).

    NR is 1 in VMX non-root operation unless that is concealed. The PIP of a VM `entry` has NR=1 in
    any case, because another control conceals that PIP.
    """
    content = cr3, non_root = pip_content(unit)
    unit.emit(_PIP(int(entry or non_root), cr3))
    unit.pending_knowledge = unit.pending_knowledge._replace(paging=content)


def pip_content(unit: Unit) -> tuple[int, bool]:
    """Return (CR3, NR) as PIP reports them now, like DecoderKnowledge.paging."""
    arch = unit.state.arch
    mask = _CR3_51_5 if arch.pae_paging else _CR3_51_12
    return arch.cr3 & mask, arch.is_non_root_visible


def emit_vmcs(unit: Unit) -> None:
    """Emit VMCS with bits 51:12 of the current pointer; all ones without a current VMCS
    (33.4.2.15).
    """
    pointer = unit.state.arch.vmcs
    unit.emit(_VMCS(_NO_POINTER if pointer is None else pointer))
    unit.pending_knowledge = unit.pending_knowledge._replace(vmcs=pointer)


def mode_exec_bits(unit: Unit) -> int:
    """Return the low bits of MODE.Exec now: CS.L & LMA, CS.D, RFLAGS.IF if reported (Table 33-26).

    DecoderKnowledge.mode holds the bits of the last packet.
    """
    arch = unit.state.arch
    if arch.interrupt_flag and reports_interrupt_flag(unit):
        return arch.mode_exec | 4
    return arch.mode_exec


def reports_interrupt_flag(unit: Unit) -> bool:
    """Return whether bit 2 of MODE.Exec is RFLAGS.IF: Parameters.modeexec_interrupt_flag."""
    if unit.configuration.event_en:
        return True
    return unit.parameters.modeexec_interrupt_flag == "cpuid" and unit.profile.event_trace


def is_mode_exec_due(unit: Unit) -> bool:
    """Return whether a branch must send MODE.Exec: the code width changed, or IF with EventEn=1."""
    known_mode = unit.pending_knowledge.mode
    counts = 0b111 if unit.configuration.event_en else 0b011
    return known_mode is None or bool((known_mode ^ mode_exec_bits(unit)) & counts)


def initial_knowledge(unit: Unit) -> DecoderKnowledge:
    """Return what a decoder knows when a trace begins: software that sets TraceEn knows the
    context.
    """
    arch = unit.state.arch
    return DecoderKnowledge(None, arch.interrupt_flag, pip_content(unit), arch.in_tx, arch.vmcs)


def emit_mode_exec(unit: Unit) -> None:
    """Emit MODE.Exec with the current mode (section 33.4.2.8)."""
    mode = mode_exec_bits(unit)
    unit.emit(_MODE_EXEC(mode & 1, mode >> 1 & 1, mode >> 2))
    flag = unit.state.arch.interrupt_flag
    unit.pending_knowledge = unit.pending_knowledge._replace(mode=mode, interrupt_flag=flag)


def emit_mode_tsx(unit: Unit, *, aborted: bool = False) -> None:
    """Emit MODE.TSX with the current state (section 33.4.2.8)."""
    in_tx = unit.state.arch.in_tx
    unit.emit(_MODE_TSX(int(in_tx), int(aborted)))
    unit.pending_knowledge = unit.pending_knowledge._replace(in_tx=in_tx)


def emit_trace_stop(unit: Unit) -> None:
    """Emit TraceStop (section 33.4.2.9)."""
    unit.emit(_TRACE_STOP)
    unit.pending_knowledge = unit.pending_knowledge._replace(trace_stop=True)


def _emit_deferred_tips(unit: Unit) -> None:
    unit.emit(unit.state.deferred_tips)
    unit.state.deferred_tips, unit.state.deferred_count = b"", 0


def _emit_ip_packet(unit: Unit, encode_ip: Callable[..., bytes], ip: int) -> None:
    state = unit.state
    ip_bytes, payload = compress_ip(ip, state.last_ip, unit.ip_encodings)
    unit.emit(encode_ip(ip_bytes, payload))
    state.last_ip = ip
