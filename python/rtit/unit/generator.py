"""The packets of control flow and context, from state to bytes (sections 33.4.2.1 to 33.4.2.9).

Functions here put packets and keep the state that compression needs. Whether a packet is due is
decided elsewhere. Those that begin with the flush of the TNT buffer may be called at any time; the
others follow one of them.
"""

from __future__ import annotations

from collections.abc import Callable

from rtit.packets import encode, encode_tnt, encoder
from rtit.unit.compression import compress
from rtit.unit.core import Core

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


def flush_tnt(core: Core) -> None:
    """Send what waits in the TNT buffer (section 33.4.2.1), and then the deferred TIPs."""
    state = core.state
    tnt = state.tnt
    if tnt == 1:
        if state.deferred:
            _send_deferred(core)
        return
    if tnt < 128 and core.parameters.tnt_form != "long":
        core.put(_SHORT_TNT[tnt])
    else:
        count = tnt.bit_length() - 1
        core.put(encode_tnt(count, tnt - (1 << count), long=True))
    state.tnt = 1
    if state.deferred:
        _send_deferred(core)


def tip(core: Core, target: int) -> None:
    """TIP (section 33.4.2.2)."""
    _ip_packet(core, _TIP, target)


def defer_tip(core: Core, target: int) -> None:
    """TIP that waits until the TNT buffer is full or something else is sent (section 33.4.2.3)."""
    state = core.state
    ip_bytes, payload = compress(target, state.last_ip, core.ip_encodings)
    state.last_ip = target
    state.deferred += _TIP(ip_bytes, payload)
    state.deferred_count += 1
    if state.deferred_count >= core.parameters.deferred_tips:
        flush_tnt(core)


def forget(core: Core) -> None:
    """Results, TIPs and CALLs that wait are lost."""
    state = core.state
    state.tnt = 1
    state.deferred, state.deferred_count = b"", 0
    state.ret_stack.clear()


def pge(core: Core, ip: int) -> None:
    """TIP.PGE, after MODE.Exec if the decoder cannot know the mode (section 33.4.2.4)."""
    if not core.parameters.modeexec_suppress or core.state.mode_sent != mode_bits(core):
        mode_exec(core)
    _ip_packet(core, _TIP_PGE, ip)


def pgd(core: Core, target: int | None) -> None:
    """TIP.PGD (section 33.4.2.5); `target` None suppresses the IP.

    No CALL before it compresses a RET.
    """
    core.state.ret_stack.clear()
    if target is None:
        core.put(_PGD_SUPPRESSED)
    else:
        _ip_packet(core, _TIP_PGD, target)


def fup(core: Core, ip: int) -> None:
    """FUP (section 33.4.2.6)."""
    _ip_packet(core, _FUP, ip)


def pip(core: Core, *, entry: bool = False) -> None:
    """PIP with the current CR3 (section 33.4.2.7).

    NR tells of VMX non-root operation unless that is concealed; the PIP of a VM `entry` sets it in
    any case, since its own control can conceal it.
    """
    arch = core.state.arch
    mask = _CR3_51_5 if arch.pae_paging else _CR3_51_12
    non_root = entry or arch.shows_non_root
    core.put(_PIP(int(non_root), arch.cr3 & mask))


def vmcs(core: Core) -> None:
    """VMCS with bits 51:12 of the current pointer, all ones without one (section 33.4.2.15)."""
    pointer = core.state.arch.vmcs
    core.put(_VMCS(_NO_POINTER if pointer is None else pointer))


def mode_bits(core: Core) -> int:
    """The low bits of MODE.Exec now: CS.L & LMA, CS.D, and with EventEn=1 RFLAGS.IF (Table 33-26).

    State.mode_sent holds the same of the last packet.
    """
    arch = core.state.arch
    if core.configuration.event_en and arch.interrupt_flag:
        return arch.mode_exec | 4
    return arch.mode_exec


def mode_exec(core: Core) -> None:
    """MODE.Exec with the current modes (section 33.4.2.8)."""
    mode = mode_bits(core)
    core.put(_MODE_EXEC(mode & 1, mode >> 1 & 1, mode >> 2))
    core.state.mode_sent = mode


def mode_tsx(core: Core, *, aborted: bool = False) -> None:
    """MODE.TSX with the present state, by itself as in PSB+ (section 33.4.2.8)."""
    core.put(_MODE_TSX(int(core.state.arch.in_tx), int(aborted)))


def trace_stop(core: Core) -> None:
    """TraceStop (section 33.4.2.9)."""
    core.put(_TRACE_STOP)


def _send_deferred(core: Core) -> None:
    core.put(core.state.deferred)
    core.state.deferred, core.state.deferred_count = b"", 0


def _ip_packet(core: Core, encode_ip: Callable[..., bytes], ip: int) -> None:
    state = core.state
    ip_bytes, payload = compress(ip, state.last_ip, core.ip_encodings)
    core.put(encode_ip(ip_bytes, payload))
    state.last_ip = ip
