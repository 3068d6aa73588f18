"""IA32_RTIT_CTL, CR3_MATCH and the address ranges, decoded (33.2.5, 33.2.8.2, Table 33-6).

A configuration is fixed while TraceEn=1, because writes to these registers fault then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rtit.registers import CTL, RegisterFile

AddressRange = tuple[int, int]
"""First and last address, both inside."""

FILTER_EN = 1
TRACE_STOP = 2
"""Values of ADDRn_CFG (Table 33-6)."""


def is_cpl_allowed(privilege: int, *, os: bool, user: bool) -> bool:
    """Return whether the CPL filter of section 33.2.5.1 permits code at this CPL."""
    return os if privilege == 0 else user


def is_cr3_match(cr3: int, match: int, *, pae_paging: bool) -> bool:
    """Compare CR3 with IA32_RTIT_CR3_MATCH: bits 63:12, in PAE paging 63:5 (section 33.2.5.2)."""
    low = 5 if pae_paging else 12
    return cr3 >> low == match >> low


@dataclass(frozen=True, slots=True)
class AddressRanges:
    """The configured address ranges: `filter` ranges set FilterEn, `stop` ranges stop the trace.

    An instruction lies in a range if its first byte does.
    """

    filter: tuple[AddressRange, ...] = ()
    stop: tuple[AddressRange, ...] = ()

    @classmethod
    def from_registers(cls, configured: Iterable[tuple[int, int, int]]) -> AddressRanges:
        """Make the ranges from (ADDRn_CFG, ADDRn_A, ADDRn_B) of every range."""
        configured = tuple(configured)
        return cls(
            tuple((a, b) for cfg, a, b in configured if cfg == FILTER_EN),
            tuple((a, b) for cfg, a, b in configured if cfg == TRACE_STOP),
        )

    @property
    def any_configured(self) -> bool:
        """Whether any range is configured."""
        return bool(self.filter or self.stop)

    def filter_en(self, ip: int) -> bool:
        """Return FilterEn at `ip`; without FilterEn ranges it is always 1 (section 33.2.6.5)."""
        return not self.filter or any(first <= ip <= last for first, last in self.filter)

    def is_trace_stop(self, ip: int) -> bool:
        """Return whether a branch or event that lands at `ip` meets the TraceStop condition."""
        return any(first <= ip <= last for first, last in self.stop)


NO_ADDRESS_RANGES = AddressRanges()


@dataclass(frozen=True, slots=True)
class Configuration:
    """IA32_RTIT_CTL and the filter registers, decoded.

    `cyc_gap`: cycles that must pass between two CYCs (CycThresh, at least 1). `psb_period` is in
    bytes. `mtc_shift` is MTCFreq.
    """

    os: bool = False
    user: bool = False
    cr3_filter: bool = False
    cr3_match: int = 0
    branch_en: bool = False
    dis_tnt: bool = False
    dis_retc: bool = False
    tsc_en: bool = False
    mtc_en: bool = False
    mtc_shift: int = 0
    cyc_en: bool = False
    cyc_gap: int = 1
    psb_period: int = 2048
    inject: bool = False
    event_en: bool = False
    ptw_en: bool = False
    fup_on_ptw: bool = False
    pwr_evt_en: bool = False
    ranges: AddressRanges = NO_ADDRESS_RANGES


def decode_configuration(registers: RegisterFile) -> Configuration:
    """Decode the registers (Table 33-6)."""
    ctl = CTL.decode(registers.ctl)
    return Configuration(
        os=bool(ctl.OS),
        user=bool(ctl.User),
        cr3_filter=bool(ctl.CR3Filter),
        cr3_match=registers.cr3_match,
        branch_en=bool(ctl.BranchEn),
        dis_tnt=bool(ctl.DisTNT),
        dis_retc=bool(ctl.DisRETC),
        tsc_en=bool(ctl.TSCEn),
        mtc_en=bool(ctl.MTCEn),
        mtc_shift=ctl.MTCFreq,
        cyc_en=bool(ctl.CYCEn),
        cyc_gap=max(1, (1 << ctl.CycThresh) >> 1),
        psb_period=2048 << ctl.PSBFreq,
        inject=bool(ctl.InjectPsbPmiOnEnable),
        event_en=bool(ctl.EventEn),
        ptw_en=bool(ctl.PTWEn),
        fup_on_ptw=bool(ctl.FUPonPTW),
        pwr_evt_en=bool(ctl.PwrEvtEn),
        ranges=AddressRanges.from_registers(registers.address_ranges()),
    )
