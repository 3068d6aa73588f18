"""PT with LBR, BTS and BTM, where they exclude each other (section 33.3.1.2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rtit.processor import ArchState, Processor
from rtit.registers import CTL, FULL, SKYLAKE, Msr
from rtit.unit.arch_state import VmxControls
from rtit.unit.events.xsave import IA32_XSS, PT_STATE
from rtit.unit.illegal_events import ShutdownEntered
from rtit.unit.memory import Memory
from rtit.unit.state import IA32_DEBUGCTL, MSR_LASTBRANCH_0_TO_IP, MSR_LASTBRANCH_TOS

LBR, TR, BTS, OFF_OS, OFF_USR = 1 << 0, 1 << 6, 1 << 7, 1 << 9, 1 << 10
TRACED = CTL.encode(TraceEn=1, OS=1, User=1, BranchEn=1, ToPA=1)
TABLE, REGION = 0x1000, 0x10_0000


def processor(arch: ArchState) -> Processor:
    memory = Memory()
    memory.write_u64(TABLE, REGION)
    memory.write_u64(TABLE + 8, TABLE | 1)
    cpu = Processor(profile=SKYLAKE, memory=memory, arch=arch)
    cpu.set_msr(Msr.OUTPUT_BASE, TABLE)
    return cpu


def clear_by_wrmsr(cpu: Processor) -> None:
    cpu.set_msr(Msr.CTL, TRACED & ~1)


def clear_by_smi(cpu: Processor) -> None:
    cpu.smi(0x1000)


def clear_by_getsec(cpu: Processor) -> None:
    cpu.getsec(0x1000, 0x1002)


def clear_by_senter(cpu: Processor) -> None:
    cpu.senter_sleep(0x1000)


def clear_by_acm(cpu: Processor) -> None:
    cpu.acm_begin(0x1000)


def clear_by_xsaves(cpu: Processor) -> None:
    cpu.xsaves(0x1000, 0x1004)


def clear_by_warm_reset(cpu: Processor) -> None:
    cpu.reset(cold=False)


def clear_by_vm_entry(cpu: Processor) -> None:
    cpu.vm_entry(0x1000, 0x2000, controls=VmxControls(entry_loads=((Msr.CTL, TRACED & ~1),)))


def clear_by_vm_exit(cpu: Processor) -> None:
    cpu.vm_entry(0x1000, 0x2000, controls=VmxControls(clear_ctl=True))
    cpu.vm_exit(0x2000, 0x3000)


def clear_by_vmx_abort(cpu: Processor) -> None:
    cpu.vm_entry(0x1000, 0x2000, controls=VmxControls(clear_ctl=True))
    with pytest.raises(ShutdownEntered):
        cpu.vm_exit(0x2000, 0x3000, aborts=True)


@pytest.mark.spec("LBR-004")
@pytest.mark.parametrize(
    "clears",
    [
        clear_by_wrmsr,
        clear_by_smi,
        clear_by_getsec,
        clear_by_senter,
        clear_by_acm,
        clear_by_xsaves,
        clear_by_warm_reset,
        clear_by_vm_entry,
        clear_by_vm_exit,
        clear_by_vmx_abort,
    ],
)
def test_clearing_trace_en_by_any_event_resets_the_array(
    clears: Callable[[Processor], None],
) -> None:
    cpu = processor(ArchState(cpl=0, vmx="root", vmcs=0x5000))
    cpu.set_msr(IA32_XSS, PT_STATE)
    cpu.set_msr(IA32_DEBUGCTL, LBR)
    cpu.last_branch(0x1000, 0x1010)
    assert (cpu.get_msr(MSR_LASTBRANCH_TOS), cpu.get_msr(MSR_LASTBRANCH_0_TO_IP + 1)) == (1, 0x1010)
    cpu.set_msr(Msr.CTL, TRACED)
    clears(cpu)
    assert not cpu.get_msr(Msr.CTL) & 1
    assert (cpu.get_msr(MSR_LASTBRANCH_TOS), cpu.get_msr(MSR_LASTBRANCH_0_TO_IP + 1)) == (0, 0)


@pytest.mark.spec("LBR-005")
@pytest.mark.parametrize("stored", [False, True], ids=["BTM", "BTS"])
def test_bts_is_suspended_while_pt_traces(stored: bool) -> None:
    cpu = processor(ArchState(cpl=0))
    seen: list[tuple[int, int, bool]] = []
    cpu.unit.on_branch_trace = lambda *branch: seen.append(branch)
    cpu.last_branch(0x1000, 0x1010)
    assert seen == []
    cpu.set_msr(IA32_DEBUGCTL, TR | BTS * stored)
    cpu.last_branch(0x1000, 0x1020)
    cpu.set_msr(Msr.CTL, TRACED)
    cpu.last_branch(0x1000, 0x1030)
    assert cpu.get_msr(IA32_DEBUGCTL) == TR | BTS * stored
    cpu.set_msr(Msr.CTL, 0)
    cpu.last_branch(0x1000, 0x1040)
    assert seen == [(0x1000, 0x1020, stored), (0x1000, 0x1040, stored)]


def test_bts_continues_beside_pt_if_not_exclusive() -> None:
    cpu = Processor(profile=FULL, arch=ArchState(cpl=0))
    seen: list[int] = []
    cpu.unit.on_branch_trace = lambda _from, to, _stored: seen.append(to)
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFF)
    cpu.set_msr(IA32_DEBUGCTL, TR | BTS)
    cpu.set_msr(Msr.CTL, TRACED & ~CTL["ToPA"].mask)
    cpu.last_branch(0x1000, 0x1010)
    assert seen == [0x1010]


@pytest.mark.parametrize("cpl", [0, 3])
def test_bts_is_suspended_by_cpl(cpl: int) -> None:
    """IA32_DEBUGCTL.BTS_OFF_OS and BTS_OFF_USR (Volume 3, 18.4.1)."""
    cpu = processor(ArchState(cpl=cpl))
    seen: list[int] = []
    cpu.unit.on_branch_trace = lambda _from, to, _stored: seen.append(to)
    for number, control in enumerate((0, OFF_OS, OFF_USR)):
        cpu.set_msr(IA32_DEBUGCTL, TR | BTS | control)
        cpu.last_branch(0, number)
    assert seen == ([0, 2] if cpl == 0 else [0, 1])


def test_each_entry_of_the_stack_is_written_alone() -> None:
    cpu = processor(ArchState(cpl=0))
    entries = {base + n: base + n for base in (0x680, 0x6C0, 0xDC0) for n in range(32)}
    for msr, value in entries.items():
        cpu.wrmsr(msr, value)
    cpu.wrmsr(0x685, 5)
    assert {msr: cpu.get_msr(msr) for msr in entries} == {**entries, 0x685: 5}
