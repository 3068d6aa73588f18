"""What IA32_RTIT_CTL and the registers beside it say, decoded (section 33.2.8.2, Table 33-6)."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.registers import CTL, RegisterFile
from rtit.unit.enables.filtering import NO_RANGES, Ranges


@dataclass(frozen=True, slots=True)
class Configuration:
    """What IA32_RTIT_CTL and the registers beside it say. Fixed while TraceEn=1: their writes fault
    then.

    `cyc_gap`: cycles that must pass between two CYCs (CycThresh, at least 1); `psb_period` in
    bytes; `mtc_shift` MTCFreq.
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
    ranges: Ranges = NO_RANGES


def configuration_of(registers: RegisterFile) -> Configuration:
    """What the registers say, decoded (Table 33-6)."""
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
        ranges=Ranges.of(registers.address_ranges()),
    )
