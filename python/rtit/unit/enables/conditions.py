"""Packet generation enable controls: when each is 1 (section 33.2.6)."""

from __future__ import annotations

from rtit.unit.enables.configuration import Configuration
from rtit.unit.enables.filtering import cpl_allowed, cr3_matches
from rtit.unit.state.arch import Arch
from rtit.unit.state.state import State


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
