"""A WRMSR that faults changes nothing: the whole unit is compared, for every bit of every MSR."""

from __future__ import annotations

import pytest

from rtit.errors import GeneralProtection
from rtit.processor import Processor
from rtit.registers import CTL, MSRS, PROFILES, Msr, Profile
from rtit.unit.events.xsave import IA32_XSS
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table
from rtit.unit.state import IA32_DEBUGCTL

TABLE, REGION = 0x1000, 0x10_0000


def processor_with_pending_packets(profile: Profile, out: bytearray) -> Processor:
    """Return a processor in the middle of a trace, with pending results, a CALL and compressed
    IPs.
    """
    memory = Memory(observer=lambda _, data: out.extend(data))
    cpu = Processor(profile=profile, memory=memory)
    write_topa_table(memory, TABLE, [TopaEntry(REGION), TopaEntry(TABLE, end=True)])
    cpu.set_msr(Msr.OUTPUT_BASE, TABLE)
    if profile.range0:
        cpu.set_msr(Msr.ADDR0_A, 0x40_0000)
        cpu.set_msr(Msr.ADDR0_B, 0x4F_FFFF)
    wanted = {"User": 1, "BranchEn": 1, "ToPA": 1, "TSCEn": 1, "TraceEn": 1}
    wanted |= {"CYCEn": 1} if profile.psb_cyc else {}
    wanted |= {"ADDR0_CFG": 1} if profile.range0 else {}
    cpu.set_msr(Msr.CTL, CTL.encode(**wanted), next_ip=0x40_0000)
    cpu.at(7)
    cpu.indirect_jump(0x40_0000, 0x40_0100)
    cpu.call(0x40_0100, 0x40_0105, 0x40_0200)
    cpu.conditional(0x40_0200, 0x40_0202, 0x40_0300, taken=True)
    cpu.at(9)
    return cpu


def reserved_bits(profile: Profile, msr: Msr) -> int:
    """Return the bits that no field of Tables 33-6 to 33-9 covers, or that this processor lacks."""
    register = MSRS[msr]
    mask = register.reserved_mask
    for row in register.fields:
        if row.capability is not None and not getattr(profile, row.capability):
            mask |= row.mask
    if msr == Msr.OUTPUT_BASE:
        mask |= (1 << 64) - (1 << profile.maxphyaddr)
    return mask


@pytest.mark.spec("MSRGEN-005")
@pytest.mark.parametrize("tracing", [True, False], ids=["tracing", "off"])
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_reserved_bit_of_an_msr_faults_and_changes_nothing(profile: Profile, tracing: bool) -> None:
    out = bytearray()
    cpu = processor_with_pending_packets(profile, out)
    if not tracing:
        cpu.set_msr(Msr.CTL, cpu.get_msr(Msr.CTL) & ~1, ip=0x40_0300)
    before, length = cpu.unit.snapshot(), len(out)
    for msr in (*Msr, IA32_DEBUGCTL, IA32_XSS, 0x55F, 0x588):
        faulted = 0
        try:
            now = cpu.get_msr(msr)
        except GeneralProtection:
            now = 0
        for bit in range(64):
            try:
                cpu.set_msr(msr, now ^ 1 << bit, ip=0x1234, next_ip=0x1236)
            except GeneralProtection:
                faulted |= 1 << bit
                assert cpu.unit.snapshot() == before, f"{msr:#x} bit {bit}"
                assert len(out) == length
            else:
                cpu.unit.restore(before)
                del out[length:]
        if msr in MSRS:
            wanted = reserved_bits(profile, Msr(msr))
            assert faulted & wanted == wanted
    assert cpu.unit.snapshot() == before


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_failed_write_leaves_the_trace_unchanged(profile: Profile) -> None:
    streams = []
    for tries in (False, True):
        out = bytearray()
        cpu = processor_with_pending_packets(profile, out)
        for msr in Msr if tries else ():
            with pytest.raises(GeneralProtection):
                cpu.set_msr(msr, 1 << 63 | 1 << 28 | 8)
        cpu.ret(0x40_0300, 0x40_0105)
        cpu.indirect_jump(0x40_0105, 0x40_0110)
        cpu.set_msr(Msr.CTL, 0, ip=0x40_0110)
        streams.append(bytes(out))
    assert streams[0] == streams[1]
