"""The trace unit's state between two events: a plain value."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from typing import Any

from rtit.registers.hexadecimal import hexadecimal_repr
from rtit.unit.state.arch import Arch
from rtit.unit.state.last_branches import NO_BRANCHES, LastBranches
from rtit.unit.state.saved import Acm, Executive, Smram, Ssa
from rtit.unit.state.told import NOTHING_TOLD, Told

NEVER = 1 << 80
"""A core cycle that no clock reaches: what does not apply is due then."""


LVT_MASKED = 1 << 16
"""An entry of the local vector table after reset: it is masked."""


@dataclass(frozen=True, slots=True)
class Lost:
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
    arch: Arch = field(default_factory=Arch)
    ip: int = 0

    # What is kept aside: the host-state area in VMX non-root operation, SMRAM in SMM, the executive
    # monitor while an STM runs, what an authenticated code module has suspended.
    host: Arch | None = None
    smram: Smram | None = None
    executive: Executive | None = None
    acm: Acm | None = None

    # What asynchronous exits have saved in the enclave, the last one last (section 33.2.9.5).
    ssa: tuple[Ssa, ...] = ()

    # IA32_XSS (section 33.3.5.2) and the last branch records (section 33.3.1.2).
    xss: int = 0
    last_branches: LastBranches = NO_BRANCHES

    # PacketEn, no address range in use, no DisTNT, no CS base to add, no PSB+ overdue, no overflow:
    # near branches need no second look.
    plain: bool = False

    # Compression (sections 33.4.2.1 and 33.4.2.2). `tnt` has a stop bit above the results, so 1 is
    # empty.
    tnt: int = 1
    last_ip: int = 0
    ret_stack: deque[int] = field(default_factory=lambda: deque(maxlen=64))
    # What has gone out tells; `owed`: an overflow has resolved with ContextEn=0, and what it has
    # lost is to be told when the context is entered again.
    told: Told = NOTHING_TOLD
    owed: bool = False

    # Time in core cycles: now, the last CYC, when the next CYC may go out, the next MTC (and how
    # many MTC periods the ART has then seen), and the first of what comes by itself, which may be
    # too early but never too late.
    cycle: int = 0
    cyc_base: int = 0
    cyc_due: int = NEVER
    next_mtc: int = NEVER
    mtc_index: int = 0
    mtc_drop: int = 0
    due: int = NEVER
    # TIPs that wait for the results before them (section 33.4.2.3): their bytes and number.
    deferred: bytes = b""
    deferred_count: int = 0

    # Internal buffer overflow (section 33.3.8): what it hides and when it may resolve; the level of
    # the buffer, in bytes * Parameters.drain_cycles, as of a core cycle.
    overflow: Lost | None = None
    overflow_until: int = NEVER
    level: int = 0
    level_cycle: int = 0

    # Bytes of the stream that have not reached the output: Parameters.held_bytes.
    held: bytes = b""

    # In a C-state deeper than C0.1 (section 33.4.2.24), or in one that no packet tells of.
    asleep: bool = False
    dozing: bool = False

    # IA32_PERF_GLOBAL_STATUS as far as PT sets it, the LVT entry of the PMI, which the emulator's
    # APIC obeys, ToPA PMIs signalled so far, and the bytes after which one that is pending is
    # signalled (section 33.2.7.2).
    global_status: int = 0
    lvt_pmi: int = LVT_MASKED
    pmis: int = 0
    pmi_left: int | None = None

    # The core cycle from which on STATUS.Error shows what it holds (section 33.3.2.1).
    error_shown: int = 0

    def copy(self) -> State:
        """A value of its own."""
        other = State()
        other.assign(self)
        return other

    def assign(self, other: State) -> None:
        """Take every value of `other`."""
        for name in _NAMES:
            setattr(self, name, getattr(other, name))
        self.ret_stack = other.ret_stack.copy()

    def diff(self, other: State) -> dict[str, tuple[Any, Any]]:
        """(ours, theirs) for every field that differs, by name."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in _NAMES)
        return {name: (ours, theirs) for name, ours, theirs in pairs if ours != theirs}


_NAMES = tuple(row.name for row in fields(State))
