"""Other MSRs that the chapter has software read or write, and XSAVES in CPUID."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtit.errors import GeneralProtection, IllegalEvent, UndefinedOpcode
from rtit.processor import ArchState, Processor
from rtit.registers import BROADWELL, CTL, FULL, MSRS, PROFILES, SKYLAKE, Msr, Profile
from rtit.unit.arch_state import VmxControls
from rtit.unit.events.xsave import IA32_XSS, PT_STATE
from rtit.unit.time_model import TimeModel

IA32_TSC_ADJUST, MSR_PLATFORM_INFO, LVT_PMI, IA32_VMX_MISC = 0x3B, 0xCE, 0x834, 0x485
KERNEL = ArchState(cpl=0)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.spec("VMX-003")
def test_vmx_misc_has_bit_14_if_tracing_continues_in_vmx_operation(profile: Profile) -> None:
    found = Processor(profile=profile).get_msr(IA32_VMX_MISC)
    assert found >> 14 & 1 == profile.vmx_tracing


@pytest.mark.spec("TIME-015")
def test_platform_info_has_the_p1_ratio() -> None:
    assert Processor(profile=SKYLAKE).get_msr(MSR_PLATFORM_INFO) >> 8 & 0xFF == 32
    time = TimeModel(max_non_turbo_ratio=20, crystal_hz=50_000_000)
    assert Processor(time=time).get_msr(MSR_PLATFORM_INFO) >> 8 & 0xFF == 20


@pytest.mark.parametrize("msr", [MSR_PLATFORM_INFO, IA32_VMX_MISC, 0x38E])
def test_write_of_a_read_only_msr_faults(msr: int) -> None:
    cpu = Processor(arch=KERNEL)
    with pytest.raises(GeneralProtection, match="read-only"):
        cpu.wrmsr(msr, cpu.rdmsr(msr))


@pytest.mark.parametrize("adjust", [0x1000, -0x1000])
@pytest.mark.spec("TIME-004")
def test_tsc_adjust_shifts_the_tsc(adjust: int) -> None:
    cpu = Processor(arch=KERNEL)
    before = cpu.unit.time.tsc(10)
    cpu.wrmsr(IA32_TSC_ADJUST, adjust & (1 << 64) - 1)
    assert cpu.rdmsr(IA32_TSC_ADJUST) == adjust & (1 << 64) - 1
    assert cpu.unit.time.tsc(10) == before + adjust
    assert cpu.unit.time.art_at(10) == TimeModel().art_at(10)


def test_lvt_entry_of_the_pmi_is_masked_at_reset_and_keeps_its_vector() -> None:
    cpu = Processor(arch=KERNEL)
    assert cpu.rdmsr(LVT_PMI) == 1 << 16
    cpu.wrmsr(LVT_PMI, 0xEF)
    assert cpu.rdmsr(LVT_PMI) == 0xEF
    with pytest.raises(GeneralProtection, match="reserved"):
        cpu.wrmsr(LVT_PMI, 1 << 17)
    cpu.reset()
    assert cpu.rdmsr(LVT_PMI) == 1 << 16


@pytest.mark.parametrize("profile", [FULL, BROADWELL], ids=["full", "broadwell"])
def test_msrs_are_those_that_rdmsr_answers_for(profile: Profile) -> None:
    cpu = Processor(profile=profile)
    listed = cpu.msrs()
    assert list(listed) == sorted(set(listed))
    assert {IA32_TSC_ADJUST, MSR_PLATFORM_INFO, LVT_PMI, IA32_VMX_MISC} <= set(listed)
    assert (set(MSRS) <= set(listed)) == (profile is FULL)
    assert (IA32_XSS in listed) == (profile is FULL)
    for msr in (*listed, *MSRS):
        if msr in listed:
            cpu.get_msr(msr)
        else:
            with pytest.raises(GeneralProtection):
                cpu.get_msr(msr)


def test_cpuid_0dh_describes_the_component_of_xsaves() -> None:
    cpu = Processor(arch=KERNEL)
    component = cpu.cpuid(0xD, 8)
    assert (component.eax, component.ebx, component.ecx & 1) == (128, 0, 1)
    assert cpu.cpuid(0xD, 1).ecx == PT_STATE
    assert cpu.cpuid(0xD, 1).eax >> 3 & 1 == 1
    assert cpu.cpuid(0xD, 1).ebx == 576
    cpu.wrmsr(IA32_XSS, PT_STATE)
    assert cpu.cpuid(0xD, 1).ebx == 576 + 128
    saved = cpu.xsaves(0x1000, 0x1004)
    assert saved is not None
    assert len(saved) == component.eax


def test_processor_without_xsaves_has_neither_the_instructions_nor_ia32_xss() -> None:
    cpu = Processor(profile=BROADWELL, arch=KERNEL)
    assert cpu.cpuid(0xD, 1) == cpu.cpuid(0xD, 8) == (0, 0, 0, 0)
    for access in (lambda: cpu.rdmsr(IA32_XSS), lambda: cpu.wrmsr(IA32_XSS, 0)):
        with pytest.raises(GeneralProtection, match="no IA32_XSS"):
            access()
    with pytest.raises(UndefinedOpcode):
        cpu.xsaves(0x1000, 0x1004)
    with pytest.raises(UndefinedOpcode):
        cpu.xrstors(0x1000, 0x1004, None)


@pytest.mark.spec("VMX-008")
def test_vm_exit_returns_the_guests_ia32_rtit_ctl() -> None:
    """The guest-state area saves it, and the next VM entry may load it."""
    cpu = Processor(arch=replace(KERNEL, vmx="root", vmcs=0x9000))
    cpu.wrmsr(Msr.OUTPUT_MASK_PTRS, 0xFFF)
    guest_only = VmxControls(load_ctl=0, clear_ctl=True)
    cpu.vm_entry(0x1000, 0x2000, controls=guest_only)
    ctl = CTL.encode(TraceEn=1, OS=1, BranchEn=1)
    cpu.wrmsr(Msr.CTL, ctl, next_ip=0x2002)
    assert cpu.vm_exit(0x2002, 0x3000) == ctl
    assert cpu.get_msr(Msr.CTL) == 0
    cpu.vm_entry(0x3000, 0x2002, controls=replace(guest_only, load_ctl=ctl))
    assert cpu.get_msr(Msr.CTL) == ctl


def test_vm_exit_saves_no_ia32_rtit_ctl_without_vmx_misc_14() -> None:
    profile = replace(FULL, vmx_tracing=False)
    cpu = Processor(profile=profile, arch=replace(KERNEL, vmx="nonroot", vmcs=0x9000))
    assert cpu.vm_exit(0x2002, 0x3000) is None


@pytest.mark.spec("SGX-002")
def test_smi_in_an_enclave_without_its_aep_returns_to_a_target() -> None:
    cpu = Processor()
    cpu.eenter(0x1000, 0x7000)
    cpu.smi(0x7010)
    with pytest.raises(IllegalEvent, match="RSM needs a target"):
        cpu.rsm()
    cpu.rsm(0x1003)
    assert (cpu.ip, cpu.arch.in_enclave, cpu.arch.opted_out_enclave) == (0x1003, False, False)
    cpu.eresume(0x1003)
    assert (cpu.ip, cpu.arch.in_enclave, cpu.arch.opted_out_enclave) == (0x7010, True, True)


@pytest.mark.parametrize("bsp", [True, False])
def test_init_leaves_an_enclave(bsp: bool) -> None:
    cpu = Processor()
    cpu.eenter(0x1000, 0x7000)
    cpu.init(0x7010, bsp=bsp)
    assert not cpu.arch.in_enclave
    assert [each.ip for each in cpu.unit.state.ssa] == [0x7010]
