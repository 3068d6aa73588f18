"""What the packets so far tell of the processor: a plain value (sections 33.3.8 and 33.4.2.8).

What the processor keeps aside while it runs something else: plain values in `State`.

Last branch records as far as tracing restricts them (section 33.3.1.2): a plain value.

The trace unit's state between two events: a plain value.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from rtit.registers.hexadecimal import hexadecimal_repr
from rtit.unit.arch_state import ArchState


class DecoderKnowledge(NamedTuple):
    """A decoder's knowledge. An overflow takes back what the packets that it loses would tell.

    `mode` the low bits of the last MODE.Exec, None if none was since the last PSB, and
    `interrupt_flag` RFLAGS.IF then; `paging` what PIP says: (CR3, non-root operation); `in_tx` and
    `vmcs` likewise. At the beginning of a trace it is what holds then. `trace_stop`: TraceStop.
    """

    mode: int | None = None
    interrupt_flag: bool = False
    paging: tuple[int, bool] = (0, False)
    in_tx: bool = False
    vmcs: int | None = None
    trace_stop: bool = False


NOTHING_KNOWN = DecoderKnowledge()
"""Before the first trace."""


@dataclass(frozen=True, slots=True)
class SavedBySmi:
    """What SMI delivery saves and RSM restores (section 33.2.9.3).

    `ip` is effective, None if it is an AEP that is not known; `trace_en` IA32_RTIT_CTL.TraceEn;
    `host` what VM exit goes back to, if the interrupted code ran in VMX non-root operation.
    """

    __repr__ = hexadecimal_repr("ip")

    arch: ArchState
    ip: int | None
    trace_en: bool
    host: ArchState | None


@dataclass(frozen=True, slots=True)
class SavedBySmmVmExit:
    """What an SMM VM exit left: the executive monitor or its guest (section 33.6)."""

    arch: ArchState
    host: ArchState | None


@dataclass(frozen=True, slots=True)
class SavedByAcm:
    """What an authenticated code module suspends (section 33.2.9.6): TraceEn, and the core cycles
    of tracing that no CYC has told yet.
    """

    trace_en: bool
    cycles: int = 0


@dataclass(frozen=True, slots=True)
class SavedByAex:
    """What an asynchronous exit saves and ERESUME restores (section 33.2.9.5).

    `ip` is effective; `opted_out` says that the enclave is not traced.
    """

    __repr__ = hexadecimal_repr("ip")

    ip: int
    opted_out: bool


LBR_DEPTH = 32
"""Depth of the stack: that of Skylake; the chapter gives none."""

IA32_DEBUGCTL = 0x1D9
MSR_LBR_SELECT = 0x1C8
MSR_LASTBRANCH_TOS = 0x1C9
MSR_LER_FROM_LIP = 0x1DD
MSR_LER_TO_LIP = 0x1DE
MSR_LASTBRANCH_0_FROM_IP = 0x680
MSR_LASTBRANCH_0_TO_IP = 0x6C0
MSR_LBR_INFO_0 = 0xDC0

DEBUGCTL_LBR = 1 << 0
"""IA32_DEBUGCTL.LBR: last branches are recorded."""

_LBR_STACK_MSRS = (MSR_LASTBRANCH_0_FROM_IP, MSR_LASTBRANCH_0_TO_IP, MSR_LBR_INFO_0)
_SINGLE_MSRS = {
    MSR_LBR_SELECT: "select",
    MSR_LASTBRANCH_TOS: "tos",
    MSR_LER_FROM_LIP: "ler_from",
    MSR_LER_TO_LIP: "ler_to",
}
LAST_BRANCH_MSRS = frozenset(_SINGLE_MSRS) | {
    base + n for base in _LBR_STACK_MSRS for n in range(LBR_DEPTH)
}
"""The MSRs that cannot be used beside PT on processors where the two exclude each other."""

_EMPTY_LBR_STACK = ((0, 0, 0),) * LBR_DEPTH


@dataclass(frozen=True, slots=True)
class LastBranches:
    """The stack (from, to, info) by MSR number, `tos` the youngest entry, and the single MSRs."""

    debugctl: int = 0
    select: int = 0
    tos: int = 0
    ler_from: int = 0
    ler_to: int = 0
    stack: tuple[tuple[int, int, int], ...] = _EMPTY_LBR_STACK

    @property
    def enabled(self) -> bool:
        """IA32_DEBUGCTL.LBR."""
        return bool(self.debugctl & DEBUGCTL_LBR)

    def with_branch(self, from_ip: int, to_ip: int, info: int) -> LastBranches:
        """With one more branch."""
        tos = (self.tos + 1) % LBR_DEPTH
        return replace(self, tos=tos, stack=_with_entry(self.stack, tos, (from_ip, to_ip, info)))

    def without_branches(self) -> LastBranches:
        """With an empty stack; what controls it stays."""
        return replace(self, tos=0, stack=_EMPTY_LBR_STACK)

    def read(self, msr: int) -> int:
        """The value of an MSR in RESTRICTED, or of IA32_DEBUGCTL."""
        if msr == IA32_DEBUGCTL:
            return self.debugctl
        if msr in _SINGLE_MSRS:
            value: int = getattr(self, _SINGLE_MSRS[msr])
            return value
        part, number = _stack_entry_of(msr)
        return self.stack[number][part]

    def with_msr(self, msr: int, value: int) -> LastBranches:
        """With another value in an MSR in RESTRICTED, or in IA32_DEBUGCTL."""
        if msr == IA32_DEBUGCTL:
            return replace(self, debugctl=value)
        if msr == MSR_LASTBRANCH_TOS:
            return replace(self, tos=value % LBR_DEPTH)
        if msr == MSR_LBR_SELECT:
            return replace(self, select=value)
        if msr == MSR_LER_FROM_LIP:
            return replace(self, ler_from=value)
        if msr == MSR_LER_TO_LIP:
            return replace(self, ler_to=value)
        part, number = _stack_entry_of(msr)
        entry = list(self.stack[number])
        entry[part] = value
        return replace(self, stack=_with_entry(self.stack, number, (entry[0], entry[1], entry[2])))


NO_LAST_BRANCHES = LastBranches()
"""After reset."""


def _stack_entry_of(msr: int) -> tuple[int, int]:
    """Which of from, to and info, and of which entry."""
    part = next(part for part, base in enumerate(_LBR_STACK_MSRS) if 0 <= msr - base < LBR_DEPTH)
    return part, msr - _LBR_STACK_MSRS[part]


def _with_entry(
    stack: tuple[tuple[int, int, int], ...], number: int, entry: tuple[int, int, int]
) -> tuple[tuple[int, int, int], ...]:
    return (*stack[:number], entry, *stack[number + 1 :])


NEVER = 1 << 80
"""A core cycle that no clock reaches: what does not apply is due then."""


LVT_MASKED = 1 << 16
"""An entry of the local vector table after reset: it is masked."""


@dataclass(frozen=True, slots=True)
class OverflowedState:
    """What an overflow hides; `trace_stop`: TraceStop, with which tracing has ended."""

    trace_stop: bool = False


@dataclass(slots=True)
class State:
    """Everything that decides what the unit will send, apart from its registers, its output and its
    parameters.

    Comparable; `copy` and `assign` are what snapshot and restore are made of; `diff` names what
    differs.
    """

    __repr__ = hexadecimal_repr("ip", "xss", "tnt", "last_ip", "global_status", "lvt_pmi")

    # IA32_RTIT_STATUS (section 33.2.8.4) and PacketEn (section 33.2.6.1)
    trigger_en: bool = False
    context_en: bool = False
    filter_en: bool = False
    packet_en: bool = False
    stopped: bool = False
    error: bool = False
    pend_psb: bool = False
    pend_topa_pmi: bool = False
    # Wider than the register shows, since periods reach 64 MB.
    packet_byte_count: int = 0

    # The processor: its architectural state, and the linear address of the next instruction.
    arch: ArchState = field(default_factory=ArchState)
    ip: int = 0

    # What is kept aside: the host-state area in VMX non-root operation, SMRAM in SMM, the executive
    # monitor while an STM runs, what an authenticated code module has suspended.
    host: ArchState | None = None
    smram: SavedBySmi | None = None
    executive: SavedBySmmVmExit | None = None
    acm: SavedByAcm | None = None

    # What asynchronous exits have saved in the enclave, the last one last (section 33.2.9.5).
    ssa: tuple[SavedByAex, ...] = ()

    # IA32_XSS (section 33.3.5.2) and the last branch records (section 33.3.1.2).
    xss: int = 0
    last_branches: LastBranches = NO_LAST_BRANCHES

    # PacketEn, no address range in use, no DisTNT, no CS base to add, no PSB+ overdue, no overflow:
    # near branches need no second look.
    branch_fast_path: bool = False

    # Compression (sections 33.4.2.1 and 33.4.2.2). `tnt` has a stop bit above the results, so 1 is
    # empty.
    tnt: int = 1
    last_ip: int = 0
    ret_stack: deque[int] = field(default_factory=lambda: deque(maxlen=64))
    # What has gone out tells; `context_report_pending`: an overflow has resolved with ContextEn=0, and what it has
    # lost is to be told when the context is entered again.
    decoder_knowledge: DecoderKnowledge = NOTHING_KNOWN
    context_report_pending: bool = False

    # Time in core cycles: now, the last CYC, when the next CYC may go out, the next MTC (and how
    # many MTC periods the ART has then seen), and the first of what comes by itself, which may be
    # too early but never too late.
    cycle: int = 0
    last_cyc_cycle: int = 0
    cyc_allowed_at: int = NEVER
    next_mtc_cycle: int = NEVER
    mtc_index: int = 0
    mtcs_to_drop: int = 0
    next_timer_cycle: int = NEVER
    # TIPs that wait for the results before them (section 33.4.2.3): their bytes and number.
    deferred_tips: bytes = b""
    deferred_count: int = 0

    # Internal buffer overflow (section 33.3.8): what it hides and when it may resolve; the level of
    # the buffer, in bytes * Parameters.drain_cycles, as of a core cycle.
    overflow: OverflowedState | None = None
    overflow_ends_at: int = NEVER
    level: int = 0
    level_cycle: int = 0

    # Bytes of the stream that have not reached the output: Parameters.held_bytes.
    held_bytes: bytes = b""

    # In a C-state deeper than C0.1 (section 33.4.2.24), or in one that no packet tells of.
    asleep: bool = False
    in_unreported_sleep: bool = False

    # IA32_PERF_GLOBAL_STATUS as far as PT sets it, the LVT entry of the PMI, which the emulator's
    # APIC obeys, ToPA PMIs signalled so far, and the bytes after which one that is pending is
    # signalled (section 33.2.7.2).
    global_status: int = 0
    lvt_pmi: int = LVT_MASKED
    pmis: int = 0
    bytes_until_pmi: int | None = None

    # The core cycle from which on STATUS.Error shows what it holds (section 33.3.2.1).
    error_visible_at: int = 0

    def copy(self) -> State:
        """A value of its own."""
        other = State()
        other.assign(self)
        return other

    def assign(self, other: State) -> None:
        """Take every value of `other`."""
        for name in _FIELD_NAMES:
            setattr(self, name, getattr(other, name))
        self.ret_stack = other.ret_stack.copy()

    def diff(self, other: State) -> dict[str, tuple[Any, Any]]:
        """(ours, theirs) for every field that differs, by name."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in _FIELD_NAMES)
        return {name: (ours, theirs) for name, ours, theirs in pairs if ours != theirs}


_FIELD_NAMES = tuple(row.name for row in fields(State))
