"""What the processor's events do to its architectural state."""

from __future__ import annotations

import pytest

from rtit.errors import GeneralProtection, UsageError
from rtit.processor import Arch, Processor
from rtit.registers import BROADWELL, FULL, Msr

KERNEL = 0xFFFF_FFFF_8100_0000


def test_kernel_entry_and_return() -> None:
    cpu = Processor(arch=Arch(cs_l=False, cs_d=True, cr3=0x5000))
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
    cpu = Processor(arch=Arch(cs_l=False, cs_d=True, lma=False))
    cpu.interrupt(0x1000, 0x8000)
    assert (cpu.arch.cpl, cpu.arch.bits) == (0, 32)


def test_wrong_events() -> None:
    cpu = Processor()
    cpu.at(10)
    cpu.at(10)
    with pytest.raises(ValueError, match="went back to 9"):
        cpu.at(9)
    with pytest.raises(TypeError, match="cr9"):
        cpu.far(0x1000, 0x2000, cr9=1)
    with pytest.raises(UsageError):
        cpu.far(0x1000, 0x2000, cpl=4)


def test_reset() -> None:
    cpu = Processor()
    cpu.wrmsr(Msr.CR3_MATCH, 0x5000)
    cpu.reset()
    assert (cpu.ip, cpu.arch.privilege, cpu.arch.bits) == (0xFFFF_FFF0, 0, 16)
    assert cpu.rdmsr(Msr.CR3_MATCH) == 0


def test_the_profile_decides() -> None:
    assert Processor().cpuid(0x14) == FULL.cpuid(0x14)
    cpu = Processor(profile=BROADWELL)
    with pytest.raises(GeneralProtection):
        cpu.rdmsr(Msr.ADDR0_A)
    with pytest.raises(GeneralProtection):
        cpu.wrmsr(Msr.ADDR0_A, 0)
