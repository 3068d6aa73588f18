"""Events that contradict the CPL, the current IP or an address are rejected without effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rtit.errors import IllegalEvent
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, FULL, RegisterFile
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table

USER, KERNEL = ArchState(), ArchState(cpl=0)
LEGACY = ArchState(cpl=0, cs_l=False, cs_d=True, lma=False)
HOLE = 0x8000_0000_0000
"""The first address that is not canonical with 48 bits."""

Act = Callable[[Processor], Any]
ABOVE_CPL_0: dict[str, Act] = {
    "MOV CR3": lambda cpu: cpu.mov_cr3(0x1000, 0x1003, 0x5000),
    "HLT": lambda cpu: cpu.halt(0x1000, 0x1001),
    "GETSEC": lambda cpu: cpu.getsec(0x1000, 0x1002),
    "a return to user code": lambda cpu: cpu.resume(0x1000),
    "a change of mode": lambda cpu: cpu.change_mode(0x1000, 0x1003, pae_paging=True),
}
BELOW_CPL_3: dict[str, Act] = {
    "UIRET": lambda cpu: cpu.uiret(0x1000, 0x2000),
    "the handler of a user interrupt": lambda cpu: cpu.user_interrupt(0x1000, 0x2000, 1),
}
NOT_HERE: dict[str, Act] = {
    "retire": lambda cpu: cpu.retire(0xFFF),
    "conditional": lambda cpu: cpu.conditional(0xFFF, 0x1001, 0x2000, True),
    "jump": lambda cpu: cpu.jump(0xFFF, 0x2000),
    "call": lambda cpu: cpu.call(0xFFF, 0x1004, 0x2000),
    "indirect_jump": lambda cpu: cpu.indirect_jump(0xFFF, 0x2000),
    "indirect_call": lambda cpu: cpu.indirect_call(0xFFF, 0x1001, 0x2000),
    "ret": lambda cpu: cpu.ret(0xFFF, 0x2000),
    "far": lambda cpu: cpu.far(0xFFF, 0x2000),
    "syscall": lambda cpu: cpu.syscall(0xFFF, 0x2000),
    "iret": lambda cpu: cpu.iret(0xFFF, 0x2000),
    "interrupt": lambda cpu: cpu.interrupt(0xFFF, 0x2000),
    "exception": lambda cpu: cpu.exception(0xFFF, 0x2000),
    "software_interrupt": lambda cpu: cpu.software_interrupt(0xFFF, 0x2000),
    "ptwrite": lambda cpu: cpu.ptwrite(0xFFF, 0x1003, 5),
    "umwait": lambda cpu: cpu.umwait(0xFFF, 0x1003, 0),
    "begin_transaction": lambda cpu: cpu.begin_transaction(0xFFF, 0x1005),
    "smi": lambda cpu: cpu.smi(0xFFF),
    "init": lambda cpu: cpu.init(0xFFF),
    "shutdown": lambda cpu: cpu.shutdown(0xFFF),
}
NO_SUCH_TARGET: dict[str, Act] = {
    "conditional": lambda cpu: cpu.conditional(0x1000, 0x1002, HOLE, True),
    "jump": lambda cpu: cpu.jump(0x1000, HOLE),
    "call": lambda cpu: cpu.call(0x1000, 0x1005, HOLE),
    "indirect_jump": lambda cpu: cpu.indirect_jump(0x1000, HOLE),
    "indirect_call": lambda cpu: cpu.indirect_call(0x1000, 0x1002, HOLE),
    "ret": lambda cpu: cpu.ret(0x1000, HOLE),
    "far": lambda cpu: cpu.far(0x1000, HOLE),
    "interrupt": lambda cpu: cpu.interrupt(0x1000, HOLE),
    "exception": lambda cpu: cpu.exception(0x1000, HOLE),
}
BACKWARDS: dict[str, Act] = {
    "conditional": lambda cpu: cpu.conditional(0x1000, 0xFFE, 0x2000, False),
    "call": lambda cpu: cpu.call(0x1000, 0x1000, 0x2000),
    "ptwrite": lambda cpu: cpu.ptwrite(0x1000, 0xFFF, 5),
    "umwait": lambda cpu: cpu.umwait(0x1000, 0xFFF, 0),
    "change_mode": lambda cpu: cpu.change_mode(0x1000, 0xFFF, interrupt_flag=False),
    "begin_transaction": lambda cpu: cpu.begin_transaction(0x1000, 0xFFF),
}


def processor_at_1000(arch: ArchState, *, checked: bool = True) -> Processor:
    """Return a processor before the instruction at 0x1000, in the context."""
    cpu = Processor(arch=arch, fabric=lambda _: None, checked=checked)
    ctl = CTL.encode(TraceEn=1, FabricEn=1, BranchEn=1, OS=1, User=1)
    cpu.set_msr(0x570, ctl, next_ip=0x1000)
    return cpu


def assert_rejected(cpu: Processor, act: Act, sentence: str) -> None:
    before = cpu.snapshot()
    with pytest.raises(IllegalEvent, match=sentence):
        act(cpu)
    assert cpu.snapshot() == before


@pytest.mark.parametrize("what", ABOVE_CPL_0)
def test_event_of_cpl_0_is_refused_at_cpl_3(what: str) -> None:
    assert_rejected(processor_at_1000(USER), ABOVE_CPL_0[what], f"{what} is executed at CPL 3")


@pytest.mark.parametrize("what", BELOW_CPL_3)
def test_event_of_cpl_3_is_refused_at_cpl_0(what: str) -> None:
    assert_rejected(processor_at_1000(KERNEL), BELOW_CPL_3[what], f"{what} is executed at CPL 0")


def test_interrupt_flag_changes_at_any_cpl() -> None:
    cpu = processor_at_1000(USER)
    cpu.change_mode(0x1000, 0x1001, interrupt_flag=False)
    assert not cpu.arch.interrupt_flag


@pytest.mark.parametrize("name", NOT_HERE)
def test_event_before_the_current_ip_is_refused(name: str) -> None:
    assert_rejected(
        processor_at_1000(USER),
        NOT_HERE[name],
        "0xfff is not the next instruction, which is at 0x1000",
    )


@pytest.mark.parametrize("name", NO_SUCH_TARGET)
def test_event_with_a_target_that_is_not_canonical_is_refused(name: str) -> None:
    assert_rejected(
        processor_at_1000(USER), NO_SUCH_TARGET[name], "the target 0x800000000000 is not canonical"
    )


def test_target_is_canonical_by_the_width_of_the_processor() -> None:
    cpu = Processor(profile=replace(FULL, linear_width=57))
    cpu.indirect_jump(0x1000, HOLE)
    assert cpu.ip == HOLE


def test_target_beyond_32_bits_in_32_bit_code_is_refused() -> None:
    assert_rejected(
        processor_at_1000(LEGACY), lambda cpu: cpu.jump(0x1000, 1 << 32), "beyond 32 bits"
    )


@pytest.mark.parametrize("name", BACKWARDS)
def test_next_instruction_at_or_before_the_present_one_is_refused(name: str) -> None:
    assert_rejected(processor_at_1000(USER), BACKWARDS[name], "the instruction after 0x1000 is at")


def test_straight_code_between_events_needs_no_event() -> None:
    cpu = processor_at_1000(USER)
    cpu.jump(0x1010, 0x2000)
    cpu.ret(0x2FFF, 0x1010)
    assert cpu.ip == 0x1010


def test_code_outside_the_context_needs_no_event() -> None:
    cpu = Processor(fabric=lambda _: None)
    ctl = CTL.encode(TraceEn=1, FabricEn=1, BranchEn=1, User=1)
    cpu.set_msr(0x570, ctl, next_ip=0x1000)
    cpu.syscall(0x1000, 0xFFFF_FFFF_8100_0000)
    cpu.mov_cr3(0x7000, 0x7003, 0x5000)
    cpu.resume(0x1002)
    assert cpu.ip == 0x1002


def test_32_bit_code_wraps_at_the_end_of_its_addresses() -> None:
    cpu = processor_at_1000(LEGACY)
    cpu.jump(0x1000, 0xFFFF_FFF0)
    cpu.conditional(0xFFFF_FFFE, 0, 0x2000, False)
    cpu.jump(0x10, 0x2000)
    assert cpu.ip == 0x2000


def test_unchecked_processor_accepts_any_event() -> None:
    cpu = processor_at_1000(USER, checked=False)
    cpu.jump(0xFFF, HOLE)
    cpu.halt(0x1000, 0x1001)
    assert cpu.ip == 0x1001


def test_values_with_addresses_show_them_in_hexadecimal() -> None:
    assert repr(TopaEntry(0x20_0000)).startswith("TopaEntry(base=0x200000, size=0x1000, ")
    assert "cr3=0x5000" in repr(ArchState(cr3=0x5000))
    assert "cs_base=0x0" in repr(ArchState())
    assert repr(RegisterFile(ctl=0x2009)).startswith("RegisterFile(ctl=0x2009, ")


def test_topa_table_is_written_with_public_names() -> None:
    memory = Memory()
    write_topa_table(
        memory, 0x1000, [TopaEntry(0x20_0000, 8192, stop=True), TopaEntry(0x1000, end=True)]
    )
    assert memory.read_u64(0x1000) == 0x20_0000 | 1 << 6 | 1 << 4
    assert memory.read_u64(0x1008) == 0x1000 | 1
