"""A rejected event changes no state: any event with any arguments in any state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.errors import GeneralProtection, IllegalEvent, RtitError, UndefinedOpcode, UsageError
from rtit.processor import ArchState, Processor
from rtit.registers import BROADWELL, CTL, FULL, SKYLAKE, Msr
from rtit.unit.arch_state import NO_CONTROLS, VmxControls
from rtit.unit.events.far_transfers import OperationTimes
from rtit.unit.events.xsave import COMPONENT_SIZE, IA32_XSS, PT_STATE
from rtit.unit.illegal_events import ShutdownEntered
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table
from rtit.unit.parameters.table import Parameters
from rtit.unit.time_model import TimeModel
from rtit.unit.trace_unit import TraceUnit

TABLE, REGION = 0x1000, 0x10_0000
KERNEL = ArchState(cpl=0, cr3=0x5000)
CONTEXTS = {
    "user": ArchState(cr3=0x5000),
    "kernel": KERNEL,
    "root": replace(KERNEL, vmx="root", vmcs=0x9000, stm=0x7000),
    "guest": replace(KERNEL, vmx="nonroot", vmcs=0x9000),
    "enclave": ArchState(in_enclave=True),
    "transaction": replace(KERNEL, in_tx=True),
    "user transaction": ArchState(in_tx=True),
    "guest transaction": replace(KERNEL, vmx="nonroot", vmcs=0x9000, in_tx=True),
    "waits": replace(ArchState.after_reset(), wait_for_sipi=True),
}
NUMBERS: tuple[int, ...] = (
    -1,
    0,
    1,
    2,
    3,
    5,
    15,
    16,
    255,
    256,
    0x1000,
    1 << 31,
    1 << 63,
    1 << 64,
    (1 << 70) + 5,
)
NUMBERS += (0x1010, 0x2000, 0x9000, Msr.CTL, Msr.STATUS, Msr.OUTPUT_BASE, IA32_XSS, 0x1D9)
REFUSALS = (RtitError, GeneralProtection, UndefinedOpcode)
NO_EVENTS = {"snapshot", "restore", "rdmsr", "get_msr", "cpuid", "last_branch", "last_exception"}
"""Methods that are no events."""


def events_of(kind: type) -> dict[str, Callable[..., Any]]:
    """Return every event method of the class."""
    names = [name for name in vars(kind) if not name.startswith("_")]
    return {
        name: getattr(kind, name)
        for name in names
        if inspect.isfunction(getattr(kind, name)) and name not in NO_EVENTS
    }


EVENTS = {f"unit.{name}": event for name, event in events_of(TraceUnit).items()}
EVENTS |= {f"cpu.{name}": event for name, event in events_of(Processor).items()}


def make_processor(random: Random, context: str) -> tuple[Processor, bytearray]:
    """Return a processor in the middle of a trace, with pending packets."""
    out = bytearray()
    memory = Memory(observer=lambda _, data: out.extend(data))
    cpu = Processor(
        profile=FULL
        if CONTEXTS[context].vmx != "off"
        else random.choice((FULL, SKYLAKE, BROADWELL)),
        memory=memory,
        time=TimeModel(),
        parameters=Parameters(
            buffer_bytes=random.choice((0, 300)),
            deferred_tips=random.choice((0, 3)),
            uintr_literal=random.choice(("full", "table")),
        ),
        arch=CONTEXTS[context],
    )
    write_topa_table(memory, TABLE, [TopaEntry(REGION), TopaEntry(TABLE, end=True)])
    out.clear()
    unit = cpu.unit
    unit.wrmsr(Msr.OUTPUT_BASE, TABLE)
    if cpu.unit.profile is FULL:
        unit.wrmsr(IA32_XSS, PT_STATE)
    ctl = {"TraceEn": int(random.random() < 0.8), "ToPA": 1, "OS": 1, "User": 1, "BranchEn": 1}
    if cpu.unit.profile is FULL:
        for name in ("CYCEn", "MTCEn", "EventEn", "PwrEvtEn", "PTWEn"):
            ctl[name] = random.randrange(2)
        ctl["TSCEn"] = random.randrange(2)
    unit.wrmsr(Msr.CTL, CTL.encode(**ctl), next_ip=0x1000)
    unit.at(7)
    unit.call(0x1000, 0x1005, 0x2000)
    unit.conditional(0x2000, 0x2002, 0x2010, True)
    unit.indirect_jump(0x2010, 0x3000)
    unit.conditional(0x3000, 0x3002, 0x3010, True)
    choice = random.random()
    if choice < 0.2:
        unit.begin_overflow()
    elif choice < 0.3 and context != "waits":
        unit.sleep(0x3010, 2)
    elif choice < 0.4 and context == "kernel":
        random.choice((unit.smi, unit.acm_begin))(0x3010)
    unit.at(9)
    return cpu, out


def draw_argument(random: Random, name: str, hint: Any) -> Any:
    """Return a valid or invalid value of the type."""
    if hint is int or hint == (int | None):
        if name == "clock":
            return random.choice((-1, 5, 9, 12, 100))
        if name in ("count", "ticks"):
            return random.choice((-1, 0, 3))
        return random.choice(NUMBERS)
    if hint is bool:
        return random.random() < 0.5
    if hint is ArchState or hint == (ArchState | None):
        return random.choice(list(CONTEXTS.values()))
    if hint is VmxControls:
        ends = VmxControls(clear_ctl=True, load_ctl=random.choice((0, 1, 1 << 63)))
        return random.choice((NO_CONTROLS, ends, VmxControls(tsc_offset=5)))
    if hint is OperationTimes:
        clocks = (None, 3, 9, 12, 20)
        return OperationTimes(*(random.choice(clocks) for _ in range(3)))
    if hint == (bytes | None):
        ones = b"\xff" * COMPONENT_SIZE
        return random.choice((None, b"", bytes(COMPONENT_SIZE), ones))
    if hint == (tuple[int, int] | None):
        return random.choice((None, (0x20, 1), (256, 0), (0, 4)))
    if get_origin(hint) is Mapping or "Mapping" in str(hint):
        if name == "clocks":
            return random.choice((None, {4: 12}, {4: 3}, {4: 20, 5: 15}))
        return random.choice(({4: [(0, 1)]}, {4: [(31, 1)]}, {7: []}, {4: [(0, 1)], 5: [(1, 2)]}))
    literals = [each for part in (hint, *get_args(hint)) for each in get_args(part)]
    words: list[str | None] = [each for each in literals if isinstance(each, str)]
    assert words or "None" in str(hint), f"{name}: {hint}"
    choices = [*words, None] if "None" in str(hint) else words
    return random.choice(choices)


def draw_arguments(random: Random, event: Callable[..., Any]) -> dict[str, Any]:
    hints = get_type_hints(event)
    found: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(event).parameters.items())[1:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            if random.random() < 0.5:
                found["cr3"] = random.choice((0x5000, 0x6000, 1 << 64))
        elif parameter.default is inspect.Parameter.empty or random.random() < 0.5:
            found[name] = draw_argument(random, name, hints[name])
    return found


@pytest.mark.parametrize("name", EVENTS)
@given(st.sampled_from(list(CONTEXTS)), st.integers(0, 1 << 32))
def test_rejected_event_changes_nothing(name: str, context: str, seed: int) -> None:
    random = Random(seed)
    cpu, out = make_processor(random, context)
    unit = cpu.unit
    given = draw_arguments(random, EVENTS[name])
    before, length, pending_knowledge = unit.snapshot(), len(out), unit.pending_knowledge
    try:
        EVENTS[name](unit if name.startswith("unit.") else cpu, **given)
        return
    except ShutdownEntered:
        return
    except (*REFUSALS, ValueError, TypeError) as error:
        refusal = error
    after = unit.snapshot()
    assert after.state.diff(before.state) == {}, given
    assert after == before, given
    assert not unit.packets, given
    assert unit.pending_knowledge == pending_knowledge, given
    assert len(out) == length, given
    # The rest is for callers that give no such component, or no such change.
    assert isinstance(refusal, REFUSALS) or "component" in str(refusal) or "cr3" in given


@pytest.mark.parametrize("vector", [-1, 256])
def test_vector_beyond_eight_bits_is_rejected(vector: int) -> None:
    cpu = Processor()
    with pytest.raises(IllegalEvent, match="a vector has 8 bits"):
        cpu.interrupt(0x1000, 0x2000, vector=vector)


def test_crystal_ratio_beyond_fast_counter_is_rejected() -> None:
    """33.4.2.13: FastCounter has 9 bits."""
    fits = TimeModel(crystal_hz=1_000_000, tsc_numerator=512, tsc_denominator=1, bus_hz=51_200_000)
    assert max(map(fits.fast_counter_at, range(2000))) == 511
    with pytest.raises(UsageError, match="TMA counts 512"):
        TimeModel(crystal_hz=1_000_000, tsc_numerator=1000, tsc_denominator=1, bus_hz=100_000_000)


@pytest.mark.parametrize(
    "arch",
    [
        ArchState(cpl=1),
        ArchState(cpl=2),
        ArchState(cpl=3),
        ArchState(v86=True, lma=False, cs_l=False, cpl=0),
    ],
    ids=["1", "2", "3", "virtual-8086"],
)
def test_rdmsr_and_wrmsr_above_cpl_0_are_rejected(arch: ArchState) -> None:
    cpu = Processor(arch=arch)
    with pytest.raises(GeneralProtection, match=f"WRMSR at CPL {arch.privilege}"):
        cpu.wrmsr(Msr.CR3_MATCH, 0x5000)
    with pytest.raises(GeneralProtection, match=f"RDMSR at CPL {arch.privilege}"):
        cpu.rdmsr(Msr.CR3_MATCH)
    assert cpu.get_msr(Msr.CR3_MATCH) == 0


@pytest.mark.parametrize(
    "arch",
    [KERNEL, ArchState(real_mode=True, lma=False, cs_l=False, cpl=3)],
    ids=["0", "real mode"],
)
def test_rdmsr_and_wrmsr_work_at_cpl_0(arch: ArchState) -> None:
    cpu = Processor(arch=arch)
    cpu.wrmsr(Msr.CR3_MATCH, 0x5000)
    assert cpu.rdmsr(Msr.CR3_MATCH) == 0x5000
    with pytest.raises(GeneralProtection):
        cpu.rdmsr(0x10)


def test_set_msr_and_get_msr_work_at_any_cpl() -> None:
    cpu = Processor(arch=ArchState(cpl=3))
    cpu.set_msr(Msr.CR3_MATCH, 0x5000)
    assert cpu.get_msr(Msr.CR3_MATCH) == 0x5000
    with pytest.raises(GeneralProtection):
        cpu.set_msr(Msr.CR3_MATCH, 1)


@pytest.mark.parametrize("value", [-1, 1 << 64 | 1])
def test_msr_value_beyond_64_bits_is_rejected(value: int) -> None:
    cpu = Processor(arch=KERNEL)
    for write in (cpu.set_msr, cpu.wrmsr):
        with pytest.raises(IllegalEvent, match="an MSR has 64 bits"):
            write(Msr.CTL, value)


IN_TRANSACTION: dict[str, tuple[str, Callable[[Processor], Any]]] = {
    "syscall": ("user transaction", lambda cpu: cpu.syscall(1, 2)),
    "resume": ("transaction", lambda cpu: cpu.resume(1)),
    "far": ("user transaction", lambda cpu: cpu.far(1, 2, cr3=0x6000)),
    "interrupt": ("transaction", lambda cpu: cpu.interrupt(1, 2)),
    "exception": ("transaction", lambda cpu: cpu.exception(1, 2)),
    "user interrupt": ("user transaction", lambda cpu: cpu.user_interrupt(1, 2, 3)),
    "MOV CR3": ("transaction", lambda cpu: cpu.mov_cr3(1, 4, 0x6000)),
    "SMI": ("transaction", lambda cpu: cpu.smi(1)),
    "INIT": ("transaction", lambda cpu: cpu.init(1)),
    "INIT to wait": ("transaction", lambda cpu: cpu.init(1, bsp=False)),
    "EENTER": ("user transaction", lambda cpu: cpu.eenter(1, 2)),
    "VMXON": ("transaction", lambda cpu: cpu.vmxon(1, 2)),
    "VM exit": ("guest transaction", lambda cpu: cpu.vm_exit(1, 2)),
    "GETSEC": ("transaction", lambda cpu: cpu.getsec(1, 2)),
    "ACM": ("transaction", lambda cpu: cpu.acm_begin(1)),
}


@pytest.mark.spec("TSX-008")
@pytest.mark.parametrize("name", IN_TRANSACTION)
def test_event_that_aborts_is_rejected_in_a_transaction(name: str) -> None:
    context, event = IN_TRANSACTION[name]
    cpu = Processor(arch=CONTEXTS[context])
    before = cpu.unit.snapshot()
    with pytest.raises(IllegalEvent, match="in a transaction, which it aborts first"):
        event(cpu)
    assert cpu.unit.snapshot() == before
    cpu.abort_transaction(1, 2)
    event(cpu)
    assert not cpu.arch.in_tx


@pytest.mark.spec("TSX-008")
def test_vm_entry_and_vmptrld_are_rejected_in_a_transaction() -> None:
    cpu = Processor(arch=replace(CONTEXTS["root"], in_tx=True))
    with pytest.raises(IllegalEvent, match="aborts first"):
        cpu.vm_entry(1, 2)
    with pytest.raises(IllegalEvent, match="aborts first"):
        cpu.vmptrld(1, 2, 0x1000)
    with pytest.raises(IllegalEvent, match="aborts first"):
        cpu.smm_vm_exit(1, 2)


@pytest.mark.parametrize("cause", ["sleeps", "waits for SIPI"])
def test_smi_while_the_processor_does_not_run_is_rejected(cause: str) -> None:
    cpu = Processor(arch=KERNEL)
    if cause == "sleeps":
        cpu.mwait(1, 4, 0x20)
    else:
        cpu.init(1, bsp=False)
    with pytest.raises(IllegalEvent, match=cause):
        cpu.smi(4)
