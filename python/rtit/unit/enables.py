"""Packet generation enable controls (section 33.2.6)."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.registers import CTL, RegisterFile
from rtit.unit.arch import Arch
from rtit.unit.filtering import NO_RANGES, Ranges, cpl_allowed, cr3_matches
from rtit.unit.state import State


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


def trigger_en(*, trace_en: bool, stopped: bool, error: bool) -> bool:
    """TriggerEn (section 33.2.6.2)."""
    return trace_en and not stopped and not error


def context_en(configuration: Configuration, arch: Arch) -> bool:
    """ContextEn (section 33.2.6.3)."""
    return (
        cpl_allowed(arch.privilege, os=configuration.os, user=configuration.user)
        and not arch.opted_out_enclave
        and (
            not configuration.cr3_filter
            or cr3_matches(arch.cr3, configuration.cr3_match, pae_paging=arch.pae_paging)
        )
    )


def packet_en(state: State, configuration: Configuration) -> bool:
    """PacketEn (section 33.2.6.1); 0 while a processor waits for SIPI."""
    return (
        state.trigger_en
        and state.context_en
        and state.filter_en
        and configuration.branch_en
        and not state.arch.wait_for_sipi
    )


def is_plain(state: State, configuration: Configuration) -> bool:
    """True if near branches can neither change an enable nor need more than their own packet."""
    return (
        state.packet_en
        and not configuration.ranges.used
        and not configuration.dis_tnt
        and state.arch.linear_base == 0
        and state.overflow is None
    )


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
