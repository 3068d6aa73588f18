"""PT and last branch records on processors that cannot use both (section 33.3.1.2)."""

from __future__ import annotations

from dataclasses import replace

from rtit.errors import GeneralProtection
from rtit.unit.last_branches import IA32_DEBUGCTL, RESTRICTED
from rtit.unit.pmi import COUNTERS_FROZEN, LBRS_FROZEN
from rtit.unit.trace_en import TraceEnEvents

_DEBUGCTL_BITS = 0xFFC3
"""Bits of IA32_DEBUGCTL that are not reserved on all processors with PT."""


class LastBranchRecords(TraceEnEvents):
    """LBR, BTS, BTM and LER beside tracing.

    The emulator says what they would record; while `branch_records_suspended` it is not recorded.
    """

    __slots__ = ()

    @property
    def branch_records_suspended(self) -> bool:
        """True while TraceEn=1 on a processor where PT excludes LBR, BTS, BTM and LER."""
        return self.profile.lbr_exclusive and self.registers.trace_en

    @property
    def counters_frozen(self) -> bool:
        """True while a PMI has frozen the performance counters, which are the emulator's."""
        return bool(self.state.global_status & COUNTERS_FROZEN)

    def last_branch(self, from_ip: int, to_ip: int, info: int = 0) -> None:
        """A branch that LBR records, if IA32_DEBUGCTL.LBR is 1 and nothing suspends or froze it."""
        records = self.state.last_branches
        frozen = self.state.global_status & LBRS_FROZEN
        if records.enabled and not frozen and not self.branch_records_suspended:
            self.state.last_branches = records.recorded(from_ip, to_ip, info)

    def last_exception(self, from_ip: int, to_ip: int) -> None:
        """The last branch before an exception or interrupt, which LER keeps."""
        if not self.branch_records_suspended:
            records = replace(self.state.last_branches, ler_from=from_ip, ler_to=to_ip)
            self.state.last_branches = records

    def rdmsr(self, msr: int) -> int:
        """As `Control.rdmsr`; the MSRs of LBR and LER read as 0 while suspended."""
        if msr in RESTRICTED and self.branch_records_suspended:
            return 0
        if msr in RESTRICTED or msr == IA32_DEBUGCTL:
            return self.state.last_branches.read(msr)
        return super().rdmsr(msr)

    def wrmsr(
        self, msr: int, value: int, *, ip: int | None = None, next_ip: int | None = None
    ) -> None:
        """As `Control.wrmsr`; writes to the MSRs of LBR and LER are dropped while suspended."""
        if msr == IA32_DEBUGCTL and value & ~_DEBUGCTL_BITS:
            raise GeneralProtection(f"IA32_DEBUGCTL has reserved bits: {value:#x}")
        if msr in RESTRICTED and self.branch_records_suspended:
            return
        if msr in RESTRICTED or msr == IA32_DEBUGCTL:
            self.state.last_branches = self.state.last_branches.written(msr, value)
        else:
            super().wrmsr(msr, value, ip=ip, next_ip=next_ip)
