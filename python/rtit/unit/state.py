"""The trace unit's state between two events, as a plain comparable value.

`UnitState` holds everything that determines later packets, apart from registers, output and
parameters:

* STATUS bits and enables (33.2.8.4, 33.2.6);
* contexts that the processor has saved: SMRAM, SSA, SMM-transfer VMCS, authenticated code modules;
* last branch records (33.3.1.2);
* compression: TNT buffer, LastIP, call stack (33.4.2.1, 33.4.2.2);
* `DecoderKnowledge`: the context that a decoder knows from the packets so far (33.3.8, 33.4.2.8);
* clocks and timers, in core cycles;
* an internal buffer overflow that is under way (33.3.8).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from rtit.registers.fields import hexadecimal_repr
from rtit.unit.arch_state import ArchState


class DecoderKnowledge(NamedTuple):
    """The context that a decoder knows from the packets so far.

    `mode`: the low bits of the last MODE.Exec; None if there was none since the last PSB.
    `interrupt_flag`: RFLAGS.IF at that packet. `paging`: (CR3, NR) of the last PIP; `in_tx` of the
    last MODE.TSX; `vmcs` of the last VMCS packet. When a trace begins they have the present values.
    `trace_stop`: a TraceStop packet was sent.

    An overflow discards packets, and with them what they would have reported.
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
class StateSavedBySmi:
    """Context that SMI delivery saves in SMRAM and RSM restores (section 33.2.9.3).

    `ip` is effective; None if it is an AEP that the emulator has not given. `trace_en` is
    IA32_RTIT_CTL.TraceEn. `host` is the context of the next VM exit, if the interrupted code ran in
    VMX non-root operation.
    """

    __repr__ = hexadecimal_repr("ip")

    arch: ArchState
    ip: int | None
    trace_en: bool
    host: ArchState | None


@dataclass(frozen=True, slots=True)
class StateSavedBySmmVmExit:
    """The executive monitor or its guest, as an SMM VM exit left it (section 33.6)."""

    arch: ArchState
    host: ArchState | None


@dataclass(frozen=True, slots=True)
class StateSavedByAcm:
    """State that an authenticated code module suspends (section 33.2.9.6).

    `cycles`: core cycles of tracing since the last CYC.
    """

    trace_en: bool
    cycles: int = 0


@dataclass(frozen=True, slots=True)
class StateSavedByAex:
    """Context that an asynchronous enclave exit saves and ERESUME restores (section 33.2.9.5).

    `ip` is effective; `opted_out`: the enclave is not traced.
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
    IA32_DEBUGCTL: "debugctl",
    MSR_LBR_SELECT: "select",
    MSR_LASTBRANCH_TOS: "tos",
    MSR_LER_FROM_LIP: "ler_from",
    MSR_LER_TO_LIP: "ler_to",
}
LAST_BRANCH_MSRS = (frozenset(_SINGLE_MSRS) - {IA32_DEBUGCTL}) | {
    base + n for base in _LBR_STACK_MSRS for n in range(LBR_DEPTH)
}
"""The MSRs that cannot be used beside PT on processors where the two exclude each other."""

_EMPTY_LBR_STACK = ((0, 0, 0),) * LBR_DEPTH


@dataclass(frozen=True, slots=True)
class LastBranches:
    """The LBR stack, LER, and the MSRs that control them.

    `stack` holds (from, to, info) in the order of the MSR numbers; `tos` is the index of the
    youngest.
    """

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

    def with_pending_branch(self, from_ip: int, to_ip: int, info: int) -> LastBranches:
        """Return the records with one more branch."""
        tos = (self.tos + 1) % LBR_DEPTH
        return replace(
            self, tos=tos, stack=_replace_stack_entry(self.stack, tos, (from_ip, to_ip, info))
        )

    def without_branches(self) -> LastBranches:
        """Return the records with an empty stack; the control MSRs keep their values."""
        return replace(self, tos=0, stack=_EMPTY_LBR_STACK)

    def read(self, msr: int) -> int:
        """Return the value of IA32_DEBUGCTL or of an MSR of LAST_BRANCH_MSRS."""
        if msr in _SINGLE_MSRS:
            value: int = getattr(self, _SINGLE_MSRS[msr])
            return value
        part, number = _stack_entry_of(msr)
        return self.stack[number][part]

    def with_msr(self, msr: int, value: int) -> LastBranches:
        """Return the records with another value in IA32_DEBUGCTL or an MSR of LAST_BRANCH_MSRS."""
        if msr == MSR_LASTBRANCH_TOS:
            value %= LBR_DEPTH
        if msr in _SINGLE_MSRS:
            changed: dict[str, Any] = {_SINGLE_MSRS[msr]: value}
            return replace(self, **changed)
        part, number = _stack_entry_of(msr)
        entry = list(self.stack[number])
        entry[part] = value
        return replace(
            self, stack=_replace_stack_entry(self.stack, number, (entry[0], entry[1], entry[2]))
        )


NO_LAST_BRANCHES = LastBranches()
"""After reset."""


def _stack_entry_of(msr: int) -> tuple[int, int]:
    """Return the index within an entry (from, to, info) and the number of the entry."""
    part = next(part for part, base in enumerate(_LBR_STACK_MSRS) if 0 <= msr - base < LBR_DEPTH)
    return part, msr - _LBR_STACK_MSRS[part]


def _replace_stack_entry(
    stack: tuple[tuple[int, int, int], ...], number: int, entry: tuple[int, int, int]
) -> tuple[tuple[int, int, int], ...]:
    return (*stack[:number], entry, *stack[number + 1 :])


NEVER = 1 << 80
"""A core cycle that no clock reaches: what does not apply is due then."""

LVT_MASKED = 1 << 16
"""An entry of the local vector table after reset: it is masked."""


@dataclass(frozen=True, slots=True)
class OverflowedState:
    """Facts that an overflow hides until OVF. `trace_stop`: TraceStop has ended tracing."""

    trace_stop: bool = False


@dataclass(slots=True)
class UnitState:
    """Everything that determines later packets, apart from registers, output and parameters.

    Comparable. Snapshots use `copy` and `assign`; `diff` names the fields that differ.
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
    # Wider than the register field, because PSB periods reach 64 MB.
    packet_byte_count: int = 0

    # The architectural state, and the linear address of the next instruction.
    arch: ArchState = field(default_factory=ArchState)
    ip: int = 0

    # Saved contexts: the host in VMX non-root operation, SMRAM in SMM, the executive monitor while
    # an STM runs, what an authenticated code module suspends, and the SSA frames of the enclave,
    # youngest last (section 33.2.9.5).
    host: ArchState | None = None
    smram: StateSavedBySmi | None = None
    executive: StateSavedBySmmVmExit | None = None
    acm: StateSavedByAcm | None = None
    ssa: tuple[StateSavedByAex, ...] = ()

    # IA32_XSS (section 33.3.5.2) and the last branch records (section 33.3.1.2).
    xss: int = 0
    last_branches: LastBranches = NO_LAST_BRANCHES

    # Cache: PacketEn=1, no address range, no DisTNT, CS base 0, no PSB+ overdue, no overflow.
    branch_fast_path: bool = False

    # Compression (sections 33.4.2.1 and 33.4.2.2). `tnt` holds the results below a stop bit, so 1
    # is an empty buffer.
    tnt: int = 1
    last_ip: int = 0
    ret_stack: deque[int] = field(default_factory=lambda: deque(maxlen=64))

    # What written packets have reported. `context_report_pending`: an overflow resolved with
    # ContextEn=0, so lost context is reported when the context is entered again.
    decoder_knowledge: DecoderKnowledge = NOTHING_KNOWN
    context_report_pending: bool = False

    # Time in core cycles. `mtc_index`: MTC periods of the ART at `next_mtc_cycle`.
    # `next_timer_cycle`: see `timing_packets`.
    cycle: int = 0
    last_cyc_cycle: int = 0
    cyc_allowed_at: int = NEVER
    next_mtc_cycle: int = NEVER
    mtc_index: int = 0
    mtcs_to_drop: int = 0
    next_timer_cycle: int = NEVER

    # TIPs that wait for the TNT results before them (section 33.4.2.3): bytes and number.
    deferred_tips: bytes = b""
    deferred_count: int = 0

    # Internal buffer overflow (section 33.3.8), and the first cycle at which it may resolve.
    # `level`: bytes in the buffer * Parameters.drain_cycles, at core cycle `level_cycle`.
    overflow: OverflowedState | None = None
    overflow_ends_at: int = NEVER
    level: int = 0
    level_cycle: int = 0

    # Bytes that have not reached the output: Parameters.held_bytes.
    held_back: bytes = b""

    # In a C-state deeper than C0.1 (section 33.4.2.24), or in one without packets.
    asleep: bool = False
    in_unreported_sleep: bool = False

    # ToPA PMI (section 33.2.7.2): IA32_PERF_GLOBAL_STATUS as far as PT sets it; the LVT entry,
    # which the emulator's APIC obeys; PMIs signalled so far; bytes until a delayed PMI.
    global_status: int = 0
    lvt_pmi: int = LVT_MASKED
    pmis: int = 0
    bytes_until_pmi: int | None = None

    # The core cycle from which STATUS.Error is visible (section 33.3.2.1).
    error_visible_at: int = 0

    def copy(self) -> UnitState:
        """Return an independent copy."""
        other = UnitState()
        other.assign_all_fields(self)
        return other

    def assign_all_fields(self, other: UnitState) -> None:
        """Replace every field by that of `other`."""
        for name in _FIELD_NAMES:
            setattr(self, name, getattr(other, name))
        self.ret_stack = other.ret_stack.copy()

    def diff(self, other: UnitState) -> dict[str, tuple[Any, Any]]:
        """Return (own value, other value) of each field that differs, by name."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in _FIELD_NAMES)
        return {name: (ours, theirs) for name, ours, theirs in pairs if ours != theirs}


_FIELD_NAMES = tuple(row.name for row in fields(UnitState))
