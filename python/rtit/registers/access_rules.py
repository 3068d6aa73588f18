"""RDMSR and WRMSR of the PT MSRs: effects and faults (sections 33.2.8 and 33.3.1).

Rules for reserved bits, fields and encodings derive from the rows in `registers.msr`; rules that
combine several fields are here. All rules apply to the value as written, before any change. They
are the same for WRMSR, the MSR-load areas of VM entry and VM exit, and XRSTORS (section 33.2.8.1).
"""

from __future__ import annotations

from collections.abc import Iterator

from rtit.errors import GeneralProtection
from rtit.registers.cpuid import capability_source
from rtit.registers.fields import Field, Register
from rtit.registers.msr import ADDR, CTL, MSRS, Msr
from rtit.registers.profiles import Profile
from rtit.registers.register_file import RegisterFile

_TRACE_EN = CTL["TraceEn"].mask
_TO_MEMORY_OR_TOPA = CTL["ToPA"].mask | CTL["FabricEn"].mask
_BRANCH_EN = CTL["BranchEn"].mask
_ADDRESSES = frozenset(register.address for register in ADDR)


def check_rdmsr(msr: int, *, profile: Profile) -> None:
    """Raise GeneralProtection if RDMSR of `msr` faults on `profile`."""
    _register_at_msr(msr, profile)


def check_wrmsr(
    msr: int, value: int, *, current: RegisterFile, profile: Profile, vmx: bool = False
) -> None:
    """Raise GeneralProtection if WRMSR of `value` to `msr` faults; change nothing.

    `current` are the values before the write; `vmx`: the processor is in VMX operation.
    Raises ValueError if `value` is no 64-bit number.
    """
    for reason in _wrmsr_faults(msr, value, current, profile, vmx):
        raise GeneralProtection(reason)


def wrmsr_faults(
    msr: int, value: int, *, current: RegisterFile, profile: Profile, vmx: bool = False
) -> tuple[str, ...]:
    """Return every reason for which `check_wrmsr` raises; the first is its message; () if legal."""
    return tuple(_wrmsr_faults(msr, value, current, profile, vmx))


def wrmsr(
    registers: RegisterFile, msr: int, value: int, *, profile: Profile, vmx: bool = False
) -> int:
    """Write `value` to `msr` and return what the MSR held before; raises as `check_wrmsr`.

    A write that faults changes nothing. Bits that only the processor writes keep their value. The
    trace unit acts on changes of TraceEn.
    """
    check_wrmsr(msr, value, current=registers, profile=profile, vmx=vmx)
    before = registers.read(Msr(msr))
    for row in MSRS[Msr(msr)].fields:
        if row.access == "ignored":
            value = (value & ~row.mask) | (before & row.mask) | (row.reset << row.low)
    registers.write(Msr(msr), value)
    return before


def rdmsr(registers: RegisterFile, msr: int, *, profile: Profile) -> int:
    """Return the value of `msr`; raises as `check_rdmsr`."""
    check_rdmsr(msr, profile=profile)
    return registers.read(Msr(msr))


def is_canonical(address: int, width: int) -> bool:
    """Return whether bits 63 to `width` - 1 are equal; with a width of 32, whether 63:32 are 0."""
    if width == 32:
        return address >> 32 == 0
    return address >> (width - 1) in (0, (1 << (65 - width)) - 1)


def _wrmsr_faults(
    msr: int, value: int, current: RegisterFile, profile: Profile, vmx: bool
) -> Iterator[str]:
    if not 0 <= value < 1 << 64:
        raise ValueError(f"an MSR holds 64 bits: {value:#x} does not fit")
    try:
        register = _register_at_msr(msr, profile)
    except GeneralProtection as absent:
        yield absent.reason
        return
    if msr == Msr.CTL:
        yield from _vmx_faults(value, profile, vmx)
        if current.trace_en and value == current.ctl:
            return
        if current.trace_en and value & _TRACE_EN:
            yield f"{CTL.name} changes while TraceEn stays 1"
    elif current.trace_en:
        yield f"{register.name} is written while TraceEn is 1"
    yield from _reserved_faults(register, value, profile)
    if msr == Msr.CTL:
        yield from _enable_faults(value, profile)
    elif msr in _ADDRESSES and not is_canonical(value, profile.linear_width):
        yield f"{register.name}: {value:#x} is not canonical"


def _register_at_msr(msr: int, profile: Profile) -> Register:
    """Return the register at `msr`. Raises GeneralProtection if `profile` lacks it."""
    if msr not in MSRS:
        raise GeneralProtection(f"there is no PT MSR {msr:#x}")
    register = MSRS[Msr(msr)]
    if not profile.pt:
        raise GeneralProtection(f"{register.name}: Processor Trace is not supported")
    if register.capability and not getattr(profile, register.capability):
        raise GeneralProtection(
            f"{register.name} is absent: {_missing_capability(register.capability)}"
        )
    return register


def _missing_capability(capability: str) -> str:
    if capability == "memory_output":
        return "CPUID.(14H,0):ECX[0] and ECX[2] are 0"
    if capability.startswith("range"):
        return f"CPUID.(14H,1):EAX[2:0] is not above {capability[5:]}"
    return f"{capability_source(capability)} is 0"


def _reserved_faults(register: Register, value: int, profile: Profile) -> Iterator[str]:
    if reserved := value & register.reserved_mask:
        yield f"{register.name} has reserved bits: {reserved:#x}"
    for row in register.fields:
        if row.access == "rw" and value & row.mask:
            yield from _field_faults(register, row, row.extract_field(value), profile)


def _field_faults(register: Register, row: Field, content: int, profile: Profile) -> Iterator[str]:
    """Return why `content` of a field is illegal; it is not 0, which is legal in each field."""
    where = f"{register.name}.{row.name}"
    if row.capability and not getattr(profile, row.capability):
        yield f"{where} is reserved: {_missing_capability(row.capability)}"
    elif row.encodings and not getattr(profile, row.encodings) >> content & 1:
        yield f"{where} = {content} is not in the bitmap {capability_source(row.encodings)}"
    elif row.legal is not None and content not in row.legal:
        yield f"{where} = {content} is reserved"
    elif row.limit and content >> (getattr(profile, row.limit) - row.low):
        yield f"{where} has bits at or above {row.limit.upper()} = {getattr(profile, row.limit)}"


def _vmx_faults(value: int, profile: Profile, vmx: bool) -> Iterator[str]:
    """Return the fault of a write of CTL in VMX operation without IA32_VMX_MISC[14] (33.2.9.4)."""
    if vmx and not profile.vmx_tracing and (profile.vmx_no_pt_gp == "any" or value & _TRACE_EN):
        yield f"{CTL.name} is written in VMX operation, IA32_VMX_MISC[14] is 0"


def _enable_faults(value: int, profile: Profile) -> Iterator[str]:
    """Return the faults of a value that has TraceEn set (Table 33-6, ToPA)."""
    if not value & _TRACE_EN:
        return
    if not value & _TO_MEMORY_OR_TOPA and not profile.single_range:
        missing = _missing_capability("single_range")
        yield f"{CTL.name} sets TraceEn with ToPA and FabricEn clear: {missing}"
    if profile.branchen_must_be_set and not value & _BRANCH_EN:
        yield f"{CTL.name} sets TraceEn without BranchEn on {profile.name}"
