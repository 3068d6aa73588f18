"""Each event of the trace unit once, in a legal state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rtit.processor import ArchState, Processor
from rtit.registers import CTL, Msr
from rtit.unit.arch_state import VmxControls
from rtit.unit.events.xsave import IA32_XSS, PT_STATE
from rtit.unit.memory import Memory
from rtit.unit.parameters.table import Parameters
from rtit.unit.trace_unit import TraceUnit

BUFFER, SIZE = 0x10_0000, 1 << 16
START, HERE, NEXT, THERE = 0x1000, 0x3010, 0x3014, 0x4000
ALL = {"OS": 1, "User": 1, "BranchEn": 1, "CYCEn": 1, "EventEn": 1, "PwrEvtEn": 1, "PTWEn": 1}

USER = ArchState(cr3=0x5000)
KERNEL = replace(USER, cpl=0)
ROOT = replace(KERNEL, vmx="root", vmcs=0x9000)
STM = replace(ROOT, stm=0x7000)
OTHER = replace(KERNEL, cr3=0x6000)


@dataclass(frozen=True)
class Case:
    """`event` of the unit with `arguments`, at HERE in the state `arch`, after `before`."""

    event: str
    arch: ArchState = USER
    arguments: dict[str, Any] = field(default_factory=dict)
    before: Callable[[TraceUnit], Any] = lambda unit: None


def case(
    event: str, arch: ArchState = USER, before: Any = lambda unit: None, /, **arguments: Any
) -> Case:
    """Return a case; positional arguments are the event, its state, and the events before it."""
    return Case(event, arch, arguments, before)


def leave_enclave(unit: TraceUnit) -> None:
    """Leave an enclave by an asynchronous exit."""
    unit.enclave_enter(HERE, THERE, debug=True, opt_in=True)
    unit.enclave_event(THERE, HERE, NEXT, USER, vector=3)


def enter_guest(unit: TraceUnit) -> None:
    """Enter a guest."""
    unit.vm_entry(HERE, HERE, KERNEL, NO)


AT = {"ip": HERE, "next_ip": NEXT}
NO = VmxControls()
CASES = {
    "retire": case("retire", next_ip=NEXT),
    "taken": case("conditional", **AT, target=THERE, taken=True),
    "not taken": case("conditional", **AT, target=THERE, taken=False),
    "jump": case("jump", ip=HERE, target=THERE),
    "call": case("call", **AT, target=THERE),
    "indirect jump": case("indirect_jump", ip=HERE, target=THERE),
    "indirect call": case("indirect_call", **AT, target=THERE),
    "ret": case("ret", ip=HERE, target=THERE),
    "far branch": case("transfer", target=THERE, arch=USER),
    "interrupt": case("transfer", target=THERE, arch=OTHER, event_ip=HERE),
    "reported": case("transfer", target=THERE, arch=OTHER, report_ip=HERE),
    "ptwrite": case("ptwrite", **AT, value=5),
    "sleep": case("sleep", ip=HERE, state=2, sub_state=0, mwait=(0x20, 1)),
    "wake": case("wake", USER, lambda unit: unit.sleep(HERE, 2), last=2, deepest=2, reason=1),
    "stop clocks": case("stop_clocks", ip=HERE, ticks=0),
    "stop for a frequency": case("stop_clocks", ip=HERE, ticks=3, ratio=8),
    "change frequency": case("change_frequency", ratio=8),
    "init": case("init_wait", KERNEL, ip=HERE),
    "init of a program": case("init_wait", replace(USER, cr3=0), ip=HERE),
    "init without paging": case("init_wait", replace(KERNEL, cr3=0), ip=HERE),
    "sipi": case("sipi", USER, lambda unit: unit.init_wait(HERE), vector=8),
    "shutdown": case("shutdown", ip=HERE),
    "user interrupt": case("user_interrupt", ip=HERE, handler=THERE, vector=3),
    "uiret": case("uiret", ip=HERE, target=THERE),
    "mode": case("change_mode", **AT, arch=replace(USER, interrupt_flag=True)),
    "width": case("change_mode", **AT, arch=replace(USER, cs_l=False, cs_d=True)),
    "mov cr3": case("mov_cr3", KERNEL, **AT, arch=OTHER),
    "wrmsr": case("wrmsr", msr=0x1D9, value=0, **AT),
    "disable": case("wrmsr", msr=Msr.CTL, value=0, **AT),
    "begin": case("begin_transaction", **AT),
    "commit": case("commit_transaction", replace(USER, in_tx=True), **AT),
    "abort": case("abort_transaction", replace(USER, in_tx=True), ip=HERE, target=THERE),
    "smi": case("smi", ip=HERE, smbase=0x3_0000),
    "rsm": case("rsm", USER, lambda unit: unit.smi(HERE), target=THERE),
    "vmxon": case("vmxon", KERNEL, **AT),
    "vmxoff": case("vmxoff", ROOT, **AT),
    "vmptrld": case("vmptrld", ROOT, **AT, pointer=0xA000),
    "vmclear": case("vmclear", ROOT, **AT, pointer=0xA000),
    "vm entry": case("vm_entry", ROOT, ip=HERE, target=THERE, guest=OTHER, controls=NO),
    "early": case("vm_entry", ROOT, **AT, target=THERE, guest=OTHER, controls=NO, fails="early"),
    "late": case(
        "vm_entry",
        ROOT,
        ip=HERE,
        host_ip=NEXT,
        target=THERE,
        guest=OTHER,
        controls=NO,
        fails="late",
    ),
    "vm exit": case(
        "vm_exit", ROOT, enter_guest, guest_ip=HERE, target=THERE, host=OTHER, reason=1
    ),
    "smm vm exit": case("smm_vm_exit", STM, ip=HERE, target=THERE, monitor=OTHER, controls=NO),
    "smm vm entry": case(
        "smm_vm_entry",
        STM,
        lambda unit: unit.smm_vm_exit(HERE, START, OTHER, NO),
        ip=HERE,
        target=THERE,
        controls=NO,
    ),
    "enter": case("enclave_enter", ip=HERE, target=THERE, debug=True, opt_in=True),
    "resume": case("enclave_resume", USER, leave_enclave, ip=HERE, target=THERE),
    "exit": case("enclave_exit", replace(USER, in_enclave=True), ip=HERE, target=THERE),
    "aex": case(
        "enclave_event",
        replace(USER, in_enclave=True),
        ip=HERE,
        aep=NEXT,
        handler=THERE,
        arch=KERNEL,
        vector=3,
    ),
    "getsec": case("getsec", KERNEL, **AT),
    "senter sleep": case("senter_sleep", KERNEL, ip=HERE),
    "acm begin": case("acm_begin", KERNEL, ip=HERE),
    "acm end": case("acm_end", KERNEL, lambda unit: unit.acm_begin(HERE), target=THERE),
    "xsaves": case("xsaves", KERNEL, **AT),
    "xrstors": case("xrstors", KERNEL, lambda unit: unit.xsaves(HERE, HERE), **AT, component=None),
    "end of an overflow": case("end_overflow", USER, lambda unit: unit.begin_overflow(), ip=HERE),
    "drop mtc": case("drop_mtc", count=1),
    "cyc": case("insert_cyc"),
    "mnt": case("mnt", payload=5),
    "pad": case("pad", count=2),
    "pebs": case("pebs", ip=HERE, groups={4: [(0, 1)]}),
    "last branch": case("last_branch", from_ip=HERE, to_ip=THERE, info=0),
    "last exception": case("last_exception", from_ip=HERE, to_ip=THERE),
}


def start_traced(
    case: Case,
    out: bytearray | None = None,
    parameters: Parameters | None = None,
    **ctl: int,
) -> TraceUnit:
    """Return a processor that traces, up to the events before the case's event."""
    memory = Memory() if out is None else Memory(observer=lambda _, data: out.extend(data))
    unit = Processor(memory=memory, parameters=parameters, arch=case.arch).unit
    unit.wrmsr(Msr.OUTPUT_BASE, BUFFER)
    unit.wrmsr(Msr.OUTPUT_MASK_PTRS, SIZE - 1)
    unit.wrmsr(IA32_XSS, PT_STATE)
    unit.wrmsr(Msr.CTL, CTL.encode(TraceEn=1, **{**ALL, **ctl}), next_ip=START)
    unit.at(3)
    unit.indirect_jump(START, HERE)
    case.before(unit)
    return unit


def run_event(unit: TraceUnit, case: Case, **changed: Any) -> Any:
    """Run the event, with other arguments for some."""
    return getattr(unit, case.event)(**{**case.arguments, **changed})
