"""Last branch records as far as tracing restricts them (section 33.3.1.2): a plain value."""

from __future__ import annotations

from dataclasses import dataclass, replace

ENTRIES = 32
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

_STACK = (MSR_LASTBRANCH_0_FROM_IP, MSR_LASTBRANCH_0_TO_IP, MSR_LBR_INFO_0)
_SINGLE = {
    MSR_LBR_SELECT: "select",
    MSR_LASTBRANCH_TOS: "tos",
    MSR_LER_FROM_LIP: "ler_from",
    MSR_LER_TO_LIP: "ler_to",
}
RESTRICTED = frozenset(_SINGLE) | {base + n for base in _STACK for n in range(ENTRIES)}
"""The MSRs that cannot be used beside PT on processors where the two exclude each other."""

_EMPTY = ((0, 0, 0),) * ENTRIES


@dataclass(frozen=True, slots=True)
class LastBranches:
    """The stack (from, to, info) by MSR number, `tos` the youngest entry, and the single MSRs."""

    debugctl: int = 0
    select: int = 0
    tos: int = 0
    ler_from: int = 0
    ler_to: int = 0
    stack: tuple[tuple[int, int, int], ...] = _EMPTY

    @property
    def enabled(self) -> bool:
        """IA32_DEBUGCTL.LBR."""
        return bool(self.debugctl & DEBUGCTL_LBR)

    def recorded(self, from_ip: int, to_ip: int, info: int) -> LastBranches:
        """With one more branch."""
        tos = (self.tos + 1) % ENTRIES
        return replace(self, tos=tos, stack=_changed(self.stack, tos, (from_ip, to_ip, info)))

    def cleared(self) -> LastBranches:
        """With an empty stack; what controls it stays."""
        return replace(self, tos=0, stack=_EMPTY)

    def read(self, msr: int) -> int:
        """The value of an MSR in RESTRICTED, or of IA32_DEBUGCTL."""
        if msr == IA32_DEBUGCTL:
            return self.debugctl
        if msr in _SINGLE:
            value: int = getattr(self, _SINGLE[msr])
            return value
        part, number = _place(msr)
        return self.stack[number][part]

    def written(self, msr: int, value: int) -> LastBranches:
        """With another value in an MSR in RESTRICTED, or in IA32_DEBUGCTL."""
        if msr == IA32_DEBUGCTL:
            return replace(self, debugctl=value)
        if msr == MSR_LASTBRANCH_TOS:
            return replace(self, tos=value % ENTRIES)
        if msr == MSR_LBR_SELECT:
            return replace(self, select=value)
        if msr == MSR_LER_FROM_LIP:
            return replace(self, ler_from=value)
        if msr == MSR_LER_TO_LIP:
            return replace(self, ler_to=value)
        part, number = _place(msr)
        entry = list(self.stack[number])
        entry[part] = value
        return replace(self, stack=_changed(self.stack, number, (entry[0], entry[1], entry[2])))


NO_BRANCHES = LastBranches()
"""After reset."""


def _place(msr: int) -> tuple[int, int]:
    """Which of from, to and info, and of which entry."""
    part = next(part for part, base in enumerate(_STACK) if 0 <= msr - base < ENTRIES)
    return part, msr - _STACK[part]


def _changed(
    stack: tuple[tuple[int, int, int], ...], number: int, entry: tuple[int, int, int]
) -> tuple[tuple[int, int, int], ...]:
    return (*stack[:number], entry, *stack[number + 1 :])
