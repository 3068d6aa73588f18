"""Effects of the processor's events on its architectural state."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from rtit.errors import GeneralProtection, UsageError
from rtit.packets import Packet, scan
from rtit.processor import ArchState, ArchStateChanges, Processor
from rtit.processor.core import ArchModeChanges
from rtit.registers import BROADWELL, CTL, FULL, Msr
from rtit.unit.arch_state import MODE_FIELDS
from rtit.unit.memory import Memory

KERNEL = 0xFFFF_FFFF_8100_0000


def test_kernel_entry_and_return() -> None:
    cpu = Processor(arch=ArchState(cs_l=False, cs_d=True, cr3=0x5000))
    cpu.syscall(0x1000, KERNEL)
    assert (cpu.arch.cpl, cpu.arch.bits, cpu.arch.cr3, cpu.ip) == (0, 64, 0x5000, KERNEL)
    cpu.mov_cr3(KERNEL, KERNEL + 3, 0x6000)
    assert (cpu.arch.cr3, cpu.ip) == (0x6000, KERNEL + 3)
    cpu.resume(0x1002, bits=32)
    assert (cpu.arch.cpl, cpu.arch.bits, cpu.ip) == (3, 32, 0x1002)
    for event in (cpu.interrupt, cpu.exception, cpu.software_interrupt):
        event(0x1002, KERNEL)
        assert (cpu.arch.cpl, cpu.arch.bits) == (0, 64)
        cpu.resume(0x1002)
        assert (cpu.arch.cpl, cpu.arch.bits) == (3, 64)


def test_near_branches_move_the_ip() -> None:
    cpu = Processor()
    cpu.conditional(0x1000, 0x1002, 0x1010, False)
    assert cpu.ip == 0x1002
    cpu.conditional(0x1002, 0x1004, 0x1010, True)
    assert cpu.ip == 0x1010
    cpu.call(0x1010, 0x1015, 0x2000)
    cpu.ret(0x2000, 0x1015)
    assert cpu.ip == 0x1015
    cpu.retire(0x1020)
    assert cpu.ip == 0x1020


def test_legacy_mode_kernel_keeps_its_width() -> None:
    cpu = Processor(arch=ArchState(cs_l=False, cs_d=True, lma=False))
    cpu.interrupt(0x1000, 0x8000)
    assert (cpu.arch.cpl, cpu.arch.bits) == (0, 32)


def test_impossible_events_are_rejected() -> None:
    cpu = Processor()
    cpu.at(10)
    cpu.at(10)
    with pytest.raises(ValueError, match="went back to 9"):
        cpu.at(9)
    with pytest.raises(TypeError, match="cr9"):
        cpu.far(0x1000, 0x2000, cr9=1)  # type: ignore[call-arg]
    with pytest.raises(UsageError):
        cpu.far(0x1000, 0x2000, cpl=4)


def test_reset_restores_the_initial_state() -> None:
    cpu = Processor()
    cpu.set_msr(Msr.CR3_MATCH, 0x5000)
    cpu.reset()
    assert (cpu.ip, cpu.arch.privilege, cpu.arch.bits) == (0xFFFF_FFF0, 0, 16)
    assert cpu.get_msr(Msr.CR3_MATCH) == 0


def test_profile_decides_which_events_are_legal() -> None:
    assert Processor().cpuid(0x14) == FULL.cpuid(0x14)
    cpu = Processor(profile=BROADWELL)
    with pytest.raises(GeneralProtection):
        cpu.get_msr(Msr.ADDR0_A)
    with pytest.raises(GeneralProtection):
        cpu.set_msr(Msr.ADDR0_A, 0)


@pytest.mark.parametrize("event", ["interrupt", "exception", "software_interrupt", "syscall"])
def test_events_set_clear_or_keep_the_interrupt_flag(event: str) -> None:
    """An interrupt gate and SYSCALL clear it, returns to user code set it, a trap gate keeps it."""
    cpu = Processor()
    deliver = getattr(cpu, event)
    deliver(0x1000, KERNEL)
    assert not cpu.arch.interrupt_flag
    cpu.iret(KERNEL, KERNEL + 8)
    assert not cpu.arch.interrupt_flag
    cpu.iret(KERNEL + 8, 0x1000, cpl=3)
    assert cpu.arch.interrupt_flag
    deliver(0x1000, KERNEL, interrupt_flag=True)
    assert cpu.arch.interrupt_flag
    cpu.change_mode(KERNEL, KERNEL + 1, interrupt_flag=False)
    cpu.resume(0x1000)
    assert cpu.arch.interrupt_flag


def test_interrupt_flag_in_real_mode_and_at_an_enclave_exit() -> None:
    cpu = Processor(arch=ArchState(real_mode=True, lma=False, cs_l=False, cpl=0))
    cpu.interrupt(0x1000, 0x2000)
    assert cpu.arch.real_mode
    assert not cpu.arch.interrupt_flag
    cpu = Processor()
    cpu.eenter(0x1000, 0x7000)
    cpu.aex(0x7000, 0x1003, KERNEL)
    assert not cpu.arch.interrupt_flag


def test_execution_continues_after_a_sleeping_instruction() -> None:
    for entered in (False, True):
        cpu = Processor(arch=ArchState(cpl=0))
        cpu.mwait(0x1000, 0x1003, 0x20, entered=entered)
        assert cpu.ip == 0x1003
        cpu = Processor(arch=ArchState(cpl=0))
        cpu.umwait(0x1000, 0x1004, 0, entered=entered)
        assert cpu.ip == 0x1004
    cpu = Processor(arch=ArchState(cpl=0))
    cpu.halt(0x1000, 0x1001)
    assert cpu.ip == 0x1001


@pytest.mark.spec("TAB57-005")
def test_psb_due_at_hlt_has_the_ip_of_hlt() -> None:
    # The sleep begins before HLT completes, so the PSB+ has the IP of EXSTOP's FUP.
    memory = Memory()
    cpu = Processor(profile=FULL, memory=memory, arch=ArchState(cpl=0, cr3=0x5000))
    cpu.wrmsr(Msr.OUTPUT_MASK_PTRS, 0xFFFF)
    cpu.wrmsr(Msr.CTL, CTL.encode(TraceEn=1, OS=1, BranchEn=1, PwrEvtEn=1))
    # PWRE, EXSTOP and FUP have nine bytes at least; no TIP has more.
    while cpu.unit.state.packet_byte_count < 2048 - 9:
        cpu.indirect_jump(0x1000, 0x1000)
    cpu.halt(0x1000, 0x1001)
    packets = [each for each in scan(memory.read(0, 0x1000)) if isinstance(each, Packet)]
    names = [packet.name for packet in packets]
    assert names.index("PSB", 1) == names.index("EXSTOP") + 2
    fups = [packet.fields["payload"] for packet in packets if packet.name == "FUP"]
    assert fups[-2:] == [0x1000, 0x1000]


def test_changes_are_fields_of_the_state() -> None:
    hints, fields = get_type_hints(ArchStateChanges), get_type_hints(ArchState)
    assert {name: fields[name] for name in hints} == hints
    assert get_type_hints(ArchModeChanges).keys() == MODE_FIELDS <= hints.keys()


@pytest.mark.parametrize("name", ["in_tx", "vmx", "in_smm", "in_enclave", "nothing"])
def test_illegal_changes_of_the_state_are_rejected(name: str) -> None:
    cpu = Processor()
    before = cpu.unit.snapshot()
    with pytest.raises(TypeError, match=name):
        cpu.far(0x1000, 0x2000, **{name: 1})  # type: ignore[arg-type]
    assert cpu.unit.snapshot() == before
