"""Illegal events are rejected before any state changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtit.errors import IllegalEvent, UsageError
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, FULL, STATUS, Msr
from rtit.unit.arch_state import VmxControls
from rtit.unit.events.far_transfers import OperationTimes
from rtit.unit.illegal_events import ShutdownEntered
from rtit.unit.memory import Memory
from rtit.unit.time_model import TimeModel

KERNEL = ArchState(cpl=0, cr3=0x5000)


def test_hlt_with_a_bad_address_is_rejected() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=KERNEL)
    with pytest.raises(IllegalEvent):
        cpu.halt(0x1000, 1 << 64)
    assert not cpu.unit.state.asleep


def test_umwait_while_asleep_is_rejected() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=KERNEL)
    cpu.halt(0x1000, 0x1001)
    with pytest.raises(IllegalEvent, match="UMWAIT"):
        cpu.umwait(0x1001, 0x1005, 0, entered=False)


@pytest.mark.spec("TSX-008")
def test_senter_within_a_transaction_is_rejected() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=replace(KERNEL, in_tx=True))
    with pytest.raises(IllegalEvent):
        cpu.senter_sleep(0x1000)


@pytest.mark.spec("TSX-008")
@pytest.mark.parametrize("bsp", [True, False])
def test_init_within_a_transaction_of_an_enclave_changes_nothing(bsp: bool) -> None:
    cpu = Processor(profile=FULL, memory=Memory())
    cpu.eenter(0x1000, 0x7000)
    cpu.begin_transaction(0x7000, 0x7006)
    before = cpu.snapshot()
    with pytest.raises(IllegalEvent, match="INIT"):
        cpu.init(0x7006, bsp=bsp)
    assert cpu.snapshot() == before


def test_parts_of_an_operation_out_of_order_are_rejected() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=KERNEL, time=TimeModel(cpi=2))
    cpu.at(10)
    other = replace(KERNEL, cr3=0x6000)
    cpu.unit.transfer(0x2000, other, times=OperationTimes(pip=10, target=10))
    with pytest.raises(IllegalEvent, match="before the last one"):
        cpu.unit.transfer(0x3000, KERNEL, times=OperationTimes(pip=12, target=11))


def test_mwait_while_asleep_is_rejected() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=KERNEL)
    cpu.umwait(0x1000, 0x1004, 1)
    with pytest.raises(IllegalEvent, match="MWAIT"):
        cpu.mwait(0x1004, 0x1007, 0x20, entered=False)


def test_negative_duty_cycle_is_rejected() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=KERNEL)
    with pytest.raises(IllegalEvent, match="takes -1 ticks"):
        cpu.duty_cycle(0x1000, 2, ticks=-1)
    assert not cpu.unit.state.asleep


def test_output_without_vmx_tracing_is_rejected() -> None:
    cpu = Processor(profile=replace(FULL, vmx_tracing=False), arch=KERNEL)
    with pytest.raises(IllegalEvent, match="before IA32_RTIT_OUTPUT_BASE"):
        cpu.wrmsr(Msr.CTL, CTL.encode(TraceEn=1, BranchEn=1))


@pytest.mark.spec("TSX-008")
def test_transfer_outside_a_transaction_aborts_none() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=replace(KERNEL, in_tx=True))
    cpu.far(0x1000, 0x2000)
    assert (cpu.ip, cpu.arch.in_tx) == (0x2000, True)


def test_stm_may_change_the_interrupted_state() -> None:
    executive = replace(KERNEL, vmx="root", vmcs=0x9000, stm=0x7000)
    cpu = Processor(profile=FULL, memory=Memory(), arch=executive)
    cpu.smm_vm_exit(0x1000, 0x4000)
    assert cpu.arch.in_smm
    cpu.smm_vm_entry(0x4000, 0x1000, cr3=0x6000)
    assert cpu.arch == replace(executive, cr3=0x6000)


def test_vmx_abort_keeps_earlier_msr_loads() -> None:
    guest = replace(KERNEL, vmx="nonroot", vmcs=0x9000)
    loads = VmxControls(exit_loads=((Msr.STATUS, 256 << 32),))
    cpu = Processor(profile=FULL, memory=Memory(), arch=replace(guest, controls=loads))
    with pytest.raises(ShutdownEntered):
        cpu.vm_exit(0x1000, 0x2000, aborts=True)
    assert cpu.get_msr(Msr.STATUS) == 256 << 32


def test_vmx_abort_with_unchanged_ctl_keeps_it() -> None:
    ctl = CTL.encode(TraceEn=1, OS=1, BranchEn=1)
    loads = VmxControls(exit_loads=((Msr.CTL, ctl),))
    arch = replace(KERNEL, vmx="nonroot", vmcs=0x9000, controls=loads)
    cpu = Processor(profile=FULL, memory=Memory(), arch=arch)
    cpu.wrmsr(Msr.OUTPUT_MASK_PTRS, 0xFFF)
    cpu.wrmsr(Msr.CTL, ctl)
    with pytest.raises(ShutdownEntered):
        cpu.vm_exit(0x1000, 0x2000, aborts=True)
    assert STATUS.decode(cpu.get_msr(Msr.STATUS)).TriggerEn


def test_shutdown_while_asleep_is_rejected() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=KERNEL)
    cpu.halt(0x1000, 0x1001)
    with pytest.raises(IllegalEvent, match="shutdown"):
        cpu.shutdown(0x1001)


def test_bad_frequency_does_not_stop_the_clock() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=KERNEL)
    cpu.wrmsr(Msr.OUTPUT_MASK_PTRS, 0xFFF)
    cpu.wrmsr(Msr.CTL, CTL.encode(TraceEn=1, OS=1, BranchEn=1, PwrEvtEn=1))
    before = cpu.snapshot()
    with pytest.raises(UsageError):
        cpu.stop_clocks(0x1000, ratio=0)
    assert cpu.snapshot() == before
    assert not cpu.unit.packets
