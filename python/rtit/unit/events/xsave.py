"""XSAVES and XRSTORS of PT state, supervisor state component 8 (33.3.5.2; Volume 1, 13.5.6).

The component is passed as 128 bytes, without the rest of the XSAVE area.
"""

from __future__ import annotations

import struct

from rtit.errors import GeneralProtection, UndefinedOpcode
from rtit.registers import Msr, check_rdmsr, check_wrmsr
from rtit.registers.profiles import PT_STATE_SIZE
from rtit.unit.core import Unit
from rtit.unit.enables import linear_address
from rtit.unit.events.trace_control import (
    TRACE_EN,
    clear_trace_en,
    read_pt_msr,
    set_trace_en,
    write_pt_msr,
)
from rtit.unit.illegal_events import require_addresses

IA32_XSS = 0xDA0
PT_STATE = 1 << 8
"""State component 8 in IA32_XSS, in a requested-feature bitmap, and in XSTATE_BV."""

COMPONENT_SIZE = PT_STATE_SIZE
"""Bytes of the component, as CPUID.(0DH,8):EAX reports them."""

XSAVE_AREA_SIZE = 512 + 64
"""Bytes of an XSAVE area with x87 and SSE state and its header, in front of the component."""

COMPONENT_MSRS = (
    Msr.CTL,
    Msr.OUTPUT_BASE,
    Msr.OUTPUT_MASK_PTRS,
    Msr.STATUS,
    Msr.CR3_MATCH,
    Msr.ADDR0_A,
    Msr.ADDR0_B,
    Msr.ADDR1_A,
    Msr.ADDR1_B,
)
"""The MSRs of the component, 8 bytes each from its start; the rest is 0."""

_COMPONENT_LAYOUT = struct.Struct(f"<{len(COMPONENT_MSRS)}Q")


def read_xss(unit: Unit) -> int:
    """Return the value of IA32_XSS. Raises GeneralProtection where there is none."""
    if not unit.profile.xsaves:
        raise GeneralProtection("there is no IA32_XSS: CPUID.(0DH,1):EAX[3] is 0")
    return unit.state.xss


def write_xss(unit: Unit, value: int) -> None:
    """Write IA32_XSS, of which only bit 8 exists here. Raises GeneralProtection for others."""
    read_xss(unit)
    if value & ~PT_STATE or not unit.profile.pt:
        raise GeneralProtection(f"IA32_XSS has reserved bits: {value:#x}")
    unit.state.xss = value


def xsaves(
    unit: Unit, ip: int, next_ip: int, *, rfbm: int = PT_STATE, completes: bool = True
) -> bytes | None:
    """Execute XSAVES at `ip`; return the component, or None if not requested.

    CTL is saved with its TraceEn, which is then cleared, so that the other MSRs are stable. If
    the instruction faults or exits after that (`completes` False) TraceEn is set again, and
    nothing is returned. Raises GeneralProtection above CPL 0, UndefinedOpcode without XSAVES.
    """
    require_addresses(ip, next_ip)
    _require_executable(unit, "XSAVES")
    if not rfbm & unit.state.xss & PT_STATE:
        unit.state.ip = linear_address(unit, next_ip)
        return None
    ctl = unit.registers.ctl
    clear_trace_en(unit, ip)
    if not completes:
        unit.state.ip = linear_address(unit, ip)
        if ctl & TRACE_EN:
            set_trace_en(unit)
        return None
    unit.state.ip = linear_address(unit, next_ip)
    values = [ctl, *(_read_if_present(unit, msr) for msr in COMPONENT_MSRS[1:])]
    return _COMPONENT_LAYOUT.pack(*values).ljust(COMPONENT_SIZE, b"\0")


def xrstors(
    unit: Unit,
    ip: int,
    next_ip: int,
    component: bytes | None,
    *,
    rfbm: int = PT_STATE,
    completes: bool = True,
) -> None:
    """Execute XRSTORS at `ip`; `component` None: XSTATE_BV[8] is 0, every MSR becomes 0.

    CTL takes effect last; if the instruction faults or exits before that (`completes` False)
    the other MSRs are loaded and TraceEn is 0. Raises GeneralProtection, and then nothing has
    changed, above CPL 0, with TraceEn=1, or for a value that WRMSR would refuse. ValueError if
    the component has not 128 bytes.
    """
    require_addresses(ip, next_ip)
    _require_executable(unit, "XRSTORS")
    if component is not None and len(component) != COMPONENT_SIZE:
        raise ValueError(f"the component has {COMPONENT_SIZE} bytes, not {len(component)}")
    if not rfbm & unit.state.xss & PT_STATE:
        unit.state.ip = linear_address(unit, next_ip)
        return
    if unit.registers.trace_en:
        raise GeneralProtection("XRSTORS of PT state with TraceEn=1")
    content = bytes(COMPONENT_SIZE) if component is None else component
    values = dict(zip(COMPONENT_MSRS, _COMPONENT_LAYOUT.unpack_from(content), strict=True))
    if any(content[_COMPONENT_LAYOUT.size :]):
        raise GeneralProtection("XRSTORS: reserved bytes of the PT state are not 0")
    for msr, value in values.items():
        _check_component_value(unit, msr, value)
    for msr in COMPONENT_MSRS[1:]:
        if _msr_exists(unit, msr):
            write_pt_msr(unit, msr, values[msr])
    ctl = values[Msr.CTL] if completes else values[Msr.CTL] & ~TRACE_EN
    write_pt_msr(unit, Msr.CTL, ctl, next_ip=next_ip if completes else ip)


def _require_executable(unit: Unit, what: str) -> None:
    if not unit.profile.xsaves:
        raise UndefinedOpcode(f"{what} is not supported: CPUID.(0DH,1):EAX[3] is 0")
    if unit.state.arch.privilege != 0:
        raise GeneralProtection(f"{what} at CPL {unit.state.arch.privilege}")


def _msr_exists(unit: Unit, msr: Msr) -> bool:
    try:
        check_rdmsr(msr, profile=unit.profile)
    except GeneralProtection:
        return False
    return True


def _read_if_present(unit: Unit, msr: Msr) -> int:
    return read_pt_msr(unit, msr) if _msr_exists(unit, msr) else 0


def _check_component_value(unit: Unit, msr: Msr, value: int) -> None:
    """Raise GeneralProtection if `msr` cannot hold `value`; one that is absent holds only 0."""
    if _msr_exists(unit, msr) or value:
        vmx = unit.state.arch.vmx != "off"
        check_wrmsr(msr, value, current=unit.registers, profile=unit.profile, vmx=vmx)
