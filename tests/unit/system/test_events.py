"""Illegal events, effects of events on MSRs, and the rules of MSR writes from any source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.errors import GeneralProtection, IllegalEvent, UsageError
from rtit.packets import iterate_packets
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, Msr
from rtit.unit.arch_state import VmxControls
from rtit.unit.illegal_events import ShutdownEntered
from rtit.unit.memory import Memory
from rtit.unit.parameters.table import Parameters
from support.properties import examples

BUFFER = 0x100_0000
TRACED = CTL.encode(TraceEn=1, OS=1, User=1, BranchEn=1)
ROOT = ArchState(cpl=0, vmx="root", vmcs=0x5000)
GUEST = ArchState(cpl=0, vmx="nonroot", vmcs=0x5000)
STM = ArchState(cpl=0, vmx="root", vmcs=0x5000, stm=0x8000)

Event = Callable[[Processor], Any]


def machine(arch: ArchState, out: bytearray | None = None, **more: Any) -> Processor:
    sink = bytearray() if out is None else out
    memory = Memory(observer=lambda _, data: sink.extend(data))
    cpu = Processor(checked=False, memory=memory, arch=arch, **more)
    cpu.set_msr(Msr.OUTPUT_BASE, BUFFER)
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xF_FFFF)
    return cpu


ILLEGAL: dict[str, tuple[ArchState, Event, str]] = {
    "vmxon twice": (ROOT, lambda cpu: cpu.vmxon(0, 4), "in VMX operation"),
    "vmxon at cpl 3": (ArchState(), lambda cpu: cpu.vmxon(0, 4), "CPL 3"),
    "vmxoff": (ArchState(cpl=0), lambda cpu: cpu.vmxoff(0, 4), "outside VMX root"),
    "vmptrld": (ArchState(cpl=0), lambda cpu: cpu.vmptrld(0, 4, 0), "outside VMX root"),
    "vmptrld in a guest": (GUEST, lambda cpu: cpu.vmptrld(0, 4, 0), "outside VMX root"),
    "vmclear": (ArchState(cpl=0), lambda cpu: cpu.vmclear(0, 4, 0), "outside VMX root"),
    "vm entry": (ArchState(cpl=0), lambda cpu: cpu.vm_entry(0, 4), "VM entry .* outside VMX root"),
    "vm entry at cpl 3": (
        ArchState(cpl=3, vmx="root", vmcs=0),
        lambda cpu: cpu.vm_entry(0, 4),
        "CPL 3",
    ),
    "vm entry in a guest": (GUEST, lambda cpu: cpu.vm_entry(0, 4), "outside VMX root"),
    "vm entry, no vmcs": (
        ArchState(cpl=0, vmx="root"),
        lambda cpu: cpu.vm_entry(0, 4),
        "no current VMCS",
    ),
    "early, nowhere to go": (ROOT, lambda cpu: cpu.vm_entry(0, 4, fails="early"), "next_ip"),
    "late, nowhere to go": (ROOT, lambda cpu: cpu.vm_entry(0, 4, fails="late"), "host_ip"),
    "vm exit": (ArchState(cpl=0), lambda cpu: cpu.vm_exit(0, 4), "no VM exit"),
    "vm exit of the host": (ROOT, lambda cpu: cpu.vm_exit(0, 4), "no VM exit"),
    "smi with an stm": (STM, lambda cpu: cpu.smi(0), "SMM VM exit"),
    "rsm": (ArchState(cpl=0), lambda cpu: cpu.rsm(), "no SMI has saved"),
    "rsm, changed": (ArchState(cpl=0), lambda cpu: cpu.rsm(cpl=3), "no SMI has saved"),
    "no stm": (ROOT, lambda cpu: cpu.smm_vm_exit(0, 4), "needs an STM"),
    "stm outside vmx": (
        ArchState(cpl=0, stm=0x8000),
        lambda cpu: cpu.smm_vm_exit(0, 4),
        "outside VMX",
    ),
    "vmcall of a guest": (
        ArchState(cpl=0, vmx="nonroot", vmcs=0x5000, stm=0x8000),
        lambda cpu: cpu.smm_vm_exit(0, 4, cause="vmcall"),
        "VMCALL",
    ),
    "return from smm": (STM, lambda cpu: cpu.smm_vm_entry(0, 4), "no SMM VM exit led"),
    "eenter at cpl 0": (ArchState(cpl=0), lambda cpu: cpu.eenter(0, 4), "CPL 0"),
    "eexit": (ArchState(), lambda cpu: cpu.eexit(0, 4), "outside an enclave"),
    "aex": (ArchState(), lambda cpu: cpu.aex(0, 4, 8), "outside an enclave"),
    "eresume": (ArchState(), lambda cpu: cpu.eresume(0), "no asynchronous exit has saved"),
    "interrupt in an enclave": (
        ArchState(in_enclave=True),
        lambda cpu: cpu.interrupt(0, 4),
        "EEXIT or an asynchronous exit",
    ),
    "commit": (ArchState(), lambda cpu: cpu.end_transaction(0, 4), "no transaction"),
    "inner commit": (
        ArchState(),
        lambda cpu: cpu.end_transaction(0, 4, outermost=False),
        "no transaction",
    ),
    "abort": (ArchState(), lambda cpu: cpu.abort_transaction(0, 4), "no transaction"),
    "iret inwards": (
        ArchState(),
        lambda cpu: cpu.iret(0, 4, cpl=0),
        "IRET leads from CPL 3 to CPL 0",
    ),
    "sysret to 48 bits": (ArchState(cpl=0), lambda cpu: cpu.resume(4, bits=48), "not 48"),
    "init in vmx": (ROOT, lambda cpu: cpu.init(0), "VMX root operation"),
    "init of a guest": (GUEST, lambda cpu: cpu.init(0, bsp=False), "VMX nonroot operation"),
    "sipi": (ArchState(cpl=0), lambda cpu: cpu.sipi(8), "waits for none"),
    "sipi vector": (ArchState(wait_for_sipi=True), lambda cpu: cpu.sipi(256), "0 to 255"),
    "interrupt before sipi": (
        ArchState(wait_for_sipi=True),
        lambda cpu: cpu.interrupt(0, 4),
        "waits for SIPI",
    ),
    "wake": (ArchState(), lambda cpu: cpu.wake(last=0, deepest=0), "does not sleep"),
    "deeper": (ArchState(), lambda cpu: cpu.resolve_deeper(2), "does not sleep"),
    "ptwrite": (ArchState(), lambda cpu: cpu.ptwrite(0, 4, 1 << 32, size=4), "4 or 8 bytes"),
    "clock of a block": (
        ArchState(),
        lambda cpu: cpu.pebs(0, {4: [(0, 1)], 1: [(0, 1)]}, clocks={4: 9, 1: 8}),
        "before what precedes it",
    ),
    "acm end": (ArchState(cpl=0), lambda cpu: cpu.acm_end(4), "none has started"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_events_are_refused_and_change_nothing(name: str) -> None:
    arch, event, sentence = ILLEGAL[name]
    out = bytearray()
    cpu = machine(arch, out)
    cpu.set_msr(Msr.CTL, TRACED, next_ip=0x1000)
    before, length = cpu.unit.snapshot(), len(out)
    with pytest.raises(IllegalEvent, match=sentence):
        event(cpu)
    assert cpu.unit.snapshot() == before
    assert len(out) == length


def test_events_in_impossible_order_are_rejected() -> None:
    cpu = machine(ArchState())
    cpu.eenter(0, 4)
    with pytest.raises(IllegalEvent, match="from an enclave"):
        cpu.eenter(4, 8)
    cpu = machine(ArchState(cpl=0))
    cpu.smi(0)
    with pytest.raises(IllegalEvent, match="blocked"):
        cpu.smi(0)
    cpu.rsm()
    with pytest.raises(IllegalEvent, match="no SMI"):
        cpu.rsm()
    cpu.acm_begin(0)
    with pytest.raises(IllegalEvent, match="in another"):
        cpu.acm_begin(0)
    cpu = machine(STM)
    cpu.smm_vm_exit(0, 4)
    in_smm: tuple[Event, ...] = (
        lambda cpu: cpu.smm_vm_exit(0, 4),
        lambda cpu: cpu.smi(0),
        lambda cpu: cpu.vm_entry(0, 4),
    )
    for event in in_smm:
        with pytest.raises(IllegalEvent, match="SMM"):
            event(cpu)
    cpu.smm_vm_entry(0, 4)
    with pytest.raises(IllegalEvent, match="no SMM VM exit led"):
        cpu.smm_vm_entry(0, 4)


def test_sleeping_processor_rejects_events() -> None:
    for register in (0, 1):  # C0.2, and C0.1, which has no packet
        cpu = machine(ArchState())
        cpu.umwait(0, 4, register)
        events: tuple[Event, ...] = (
            lambda cpu: cpu.umwait(4, 8, 0),
            lambda cpu: cpu.mwait(4, 8, 0x20),
            lambda cpu: cpu.halt(4, 8),
            lambda cpu: cpu.duty_cycle(4, 6),
            lambda cpu: cpu.interrupt(4, 8),
            lambda cpu: cpu.syscall(4, 8),
            lambda cpu: cpu.init(4),
        )
        for event in events:
            with pytest.raises(IllegalEvent, match="sleeps"):
                event(cpu)
        cpu.wake(last=0, deepest=0)
        with pytest.raises(IllegalEvent, match="does not sleep"):
            cpu.wake(last=0, deepest=0)
        cpu.halt(4, 8)
        cpu.reset()
        with pytest.raises(IllegalEvent, match="does not sleep"):
            cpu.wake(last=0, deepest=0)


def test_eresume_returns_to_the_last_asynchronous_exit() -> None:
    cpu = machine(ArchState())
    for target, exit_ip in ((0x7000, 0x7010), (0x8000, 0x8010)):
        cpu.eenter(0x1000, target, debug=target == 0x7000)
        cpu.aex(exit_ip, 0x1000, 0x9000)
        cpu.resume(0x1000)
    cpu.eresume(0x1000)
    assert (cpu.ip, cpu.arch.opted_out_enclave) == (0x8010, True)
    cpu.eexit(0x8020, 0x1003)
    cpu.eresume(0x1000, 0x7050)  # a handler in the enclave has changed where it goes on
    assert (cpu.ip, cpu.arch.opted_out_enclave) == (0x7050, False)
    cpu.eexit(0x7060, 0x1003)
    with pytest.raises(IllegalEvent, match="no asynchronous exit"):
        cpu.eresume(0x1000)


def test_reset_clears_saved_state() -> None:
    cpu = machine(ArchState(cpl=0))
    cpu.smi(0)
    cpu.reset()
    with pytest.raises(IllegalEvent):
        cpu.rsm()
    cpu.acm_begin(0)
    cpu.reset(cold=False)
    with pytest.raises(IllegalEvent):
        cpu.acm_end(0)
    cpu = machine(ROOT)
    cpu.vm_entry(0, 4)
    cpu.reset()
    with pytest.raises(IllegalEvent):
        cpu.vm_exit(0, 4)


def test_values_beyond_their_fields_are_rejected() -> None:
    for wrong in (
        {"tsc_offset": 1 << 64},
        {"tsc_multiplier": 0},
        {"load_ctl": 1 << 64},
        {"entry_loads": ((Msr.CTL, -1),)},
    ):
        with pytest.raises(UsageError):
            VmxControls(**wrong)
    with pytest.raises(UsageError, match="VMX operation"):
        ArchState(vmx="guest")  # type: ignore[arg-type]
    for pointer in (0x5001, 1 << 52, -4096):
        with pytest.raises(ValueError, match="no VMCS pointer"):
            machine(ROOT).vmptrld(0, 4, pointer)


BAD = {
    "reserved bit of CTL": (Msr.CTL, 1 << 57),
    "reserved encoding": (Msr.CTL, 3 << 32),
    "reserved bit of STATUS": (Msr.STATUS, 1 << 60),
    "CR3_MATCH below bit 5": (Msr.CR3_MATCH, 1),
    "above MAXPHYADDR": (Msr.OUTPUT_BASE, 1 << 60),
    "not canonical": (Msr.ADDR0_A, 1 << 62),
}


@pytest.mark.spec("MSRGEN-007", "MSRGEN-005")
@pytest.mark.parametrize("name", BAD)
def test_every_msr_write_obeys_the_rules_of_wrmsr(name: str) -> None:
    """WRMSR faults, VM entry fails late, VM exit aborts."""
    msr, value = BAD[name]
    loads = ((Msr.ADDR1_A, 0x4000), (msr, value), (Msr.ADDR1_B, 0x5000))
    cpu = machine(ROOT)
    before = cpu.unit.registers.copy()
    with pytest.raises(GeneralProtection):
        cpu.set_msr(msr, value)
    assert cpu.vm_entry(0, 4, controls=VmxControls(entry_loads=loads), host_ip=0x9000) == "late"
    assert cpu.unit.registers == before
    assert cpu.vm_entry(0, 4, controls=VmxControls(exit_loads=loads)) is None
    with pytest.raises(ShutdownEntered, match="VMX abort"):
        cpu.vm_exit(4, 8)


@pytest.mark.spec("MSRGEN-007")
@pytest.mark.parametrize("drop", ["tip", "none"])
def test_msr_loads_before_a_vmx_abort_take_effect(drop: str) -> None:
    cpu = machine(ROOT, parameters=Parameters(vmx_abort_drop=drop))  # type: ignore[arg-type]
    loads = ((Msr.ADDR1_A, 0x4000), (Msr.CTL, 1 << 57), (Msr.ADDR1_B, 0x5000))
    cpu.vm_entry(0, 4, controls=VmxControls(exit_loads=loads))
    with pytest.raises(ShutdownEntered, match="VMX abort"):
        cpu.vm_exit(4, 8)
    assert (cpu.get_msr(Msr.ADDR1_A), cpu.get_msr(Msr.ADDR1_B)) == (0x4000, 0)


@pytest.mark.spec("VMX-008", "MSRGEN-007")
def test_vm_exit_clears_ctl_before_it_loads_msrs() -> None:
    """With TraceEn still 1, the first load would be rejected, and the exit would be a VMX abort."""
    cpu = machine(ROOT)
    loads = ((Msr.OUTPUT_BASE, 2 * BUFFER), (Msr.CTL, TRACED))
    controls = VmxControls(load_ctl=TRACED, clear_ctl=True, exit_loads=loads)
    assert cpu.vm_entry(0, 4, controls=controls) is None
    cpu.vm_exit(4, 8)
    assert (cpu.get_msr(Msr.OUTPUT_BASE), cpu.get_msr(Msr.CTL)) == (2 * BUFFER, TRACED)


@pytest.mark.spec("VMX-008", "MSRGEN-007")
def test_vm_entry_loads_ctl_before_the_list() -> None:
    cpu = machine(ROOT)
    controls = VmxControls(load_ctl=TRACED, entry_loads=((Msr.CTL, 0), (Msr.CR3_MATCH, 0x5000)))
    assert cpu.vm_entry(0, 4, controls=controls) is None
    assert (cpu.get_msr(Msr.CTL), cpu.get_msr(Msr.CR3_MATCH)) == (0, 0x5000)


def test_other_msrs_in_the_lists_are_skipped() -> None:
    cpu = machine(ROOT)
    loads = ((0x38D, 0x123), (Msr.CR3_MATCH, 0x5000))
    assert cpu.vm_entry(0, 4, controls=VmxControls(entry_loads=loads)) is None
    assert cpu.get_msr(Msr.CR3_MATCH) == 0x5000


@pytest.mark.spec("MSRGEN-004")
def test_processors_share_no_state() -> None:
    memory = Memory()
    one, other = Processor(memory=memory), Processor(memory=memory)
    before = other.unit.snapshot()
    for msr, value in (
        (Msr.OUTPUT_BASE, BUFFER),
        (Msr.OUTPUT_MASK_PTRS, 0xFFF),
        (Msr.STATUS, 1 << 40),
        (Msr.CR3_MATCH, 0x5000),
        *((msr, 0x5000) for msr in Msr if msr >= Msr.ADDR0_A),
        (Msr.CTL, TRACED),
    ):
        one.set_msr(msr, value)
    one.indirect_jump(0, 0x1000)
    one.smi(0x1000)
    assert other.unit.snapshot() == before


@pytest.mark.spec("MSRGEN-009")
@given(st.lists(st.integers(0, (1 << 47) - 1), max_size=60))
@examples(30)
def test_output_msrs_are_exact_once_trace_en_is_0(targets: list[int]) -> None:
    """While tracing the pointer may be too low, but never too high; afterwards it is exact."""
    out = bytearray()
    cpu = machine(ArchState(), out)
    cpu.set_msr(Msr.CTL, TRACED, next_ip=0x1000)
    for target in targets:
        cpu.indirect_jump(0, target)
        assert cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32 <= len(out)
    cpu.set_msr(Msr.CTL, 0)
    assert cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32 == len(out)
    assert cpu.get_msr(Msr.OUTPUT_BASE) == BUFFER
    assert cpu.get_msr(Msr.STATUS) >> 32 & 0x1FFFF == len(out) % 2048


GUEST_EVENTS = ("mov_cr3", "branch", "psb", "switch")


@pytest.mark.spec("TAB52-002", "TAB52-004", "TAB52-006", "PSB-006")
@given(st.lists(st.sampled_from(GUEST_EVENTS), max_size=30), st.booleans())
@examples(40)
def test_concealed_stream_has_no_sign_of_vmx(events: list[str], event_en: bool) -> None:
    """With the three controls 1 a guest-only stream has no VMCS, no NR, and no CFE or EVD."""
    out = bytearray()
    cpu = machine(ROOT, out)
    ctl = CTL.encode(TraceEn=1, OS=1, User=1, BranchEn=1, EventEn=int(event_en))
    controls = VmxControls(
        conceal_execution=True,
        conceal_exit=True,
        conceal_entry=True,
        load_ctl=ctl,
        clear_ctl=True,
    )
    cpu.vm_entry(0x1000, 0x2000, controls=controls)
    for number, event in enumerate(events):
        if event == "mov_cr3":
            cpu.mov_cr3(cpu.ip, cpu.ip + 3, 0x1000 * (number + 1))
        elif event == "branch":
            cpu.indirect_jump(cpu.ip, 0x2000 + 16 * number)
        elif event == "psb":
            cpu.unit.insert_psb()
        else:
            cpu.vm_exit(cpu.ip, 0x9000, reason=10)
            cpu.mov_cr3(0x9000, 0x9003, 0x7_0000)
            cpu.vm_entry(0x9100, 0x2000, controls=controls, cr3=0x8000)
    cpu.vm_exit(cpu.ip, 0x9000)
    for packet in iterate_packets(bytes(out)):
        assert packet.name not in ("VMCS", "CFE", "EVD")
        fields: dict[str, Any] = dict(packet.fields)
        assert packet.name != "PIP" or (fields["nr"], fields["cr3"] != 0x7_0000) == (0, True)
