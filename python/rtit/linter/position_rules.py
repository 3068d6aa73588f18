"""Rules about where a packet may stand: PSB+, blocks, tracing on or off, time."""

from __future__ import annotations

from rtit.linter.rules import PacketRule, Rule
from rtit.linter.stream_state import CONTEXT_FREE, PSB_PLUS_PACKETS, StreamState
from rtit.packets import FORBIDDEN_IN_BLOCK, NAMES, Packet

_ONCE_IN_PSB_PLUS = frozenset({"PIP", "VMCS", "MODE.TSX", "MODE.Exec", "FUP"})
_IN_PSB_PLUS = PSB_PLUS_PACKETS | CONTEXT_FREE | {"PSBEND", "OVF"}
_MAX_PSB_PERIOD = 1 << 26
"""Bytes between PSBs at the largest PSBFreq (Table 33-6)."""


def _is_tracing_off(_packet: Packet, state: StreamState) -> bool:
    return state.tracing is False and state.psb_plus is None


def _lacks_in_psb_plus(packet: Packet, state: StreamState) -> str:
    """Return the packets that the PSB+ that ends with this PSBEND lacks."""
    if packet.name != "PSBEND" or state.psb_plus is None:
        return ""
    on = state.tracing is True and not state.in_event
    want = {"CBR"} | ({"MODE.TSX", "MODE.Exec", "FUP"} if on else set())
    if "FUP" in state.psb_plus or "MODE.Exec" in state.psb_plus:
        want |= {"MODE.TSX", "MODE.Exec", "FUP"}
    return " ".join(sorted(want - state.psb_plus))


def _exceeds_psb_plus(packet: Packet, state: StreamState) -> str:
    if packet.name != "PSBEND" or state.psb_plus is None or state.tracing is not False:
        return ""
    return " ".join(sorted(state.psb_plus & {"MODE.Exec", "FUP"}))


def _is_psb_overdue(packet: Packet, state: StreamState) -> str:
    most = 2 * (state.psb_period or _MAX_PSB_PERIOD)
    gap = 0 if state.psb is None else packet.offset - state.psb
    return f"{gap:,} bytes after the last" if gap > most else ""


def _skips_mtc(packet: Packet, state: StreamState) -> str:
    same = state.mtc is not None and packet.fields["ctc"] == state.mtc
    return f"{state.mtc:#x} again" if same else ""


def _cyc_without_time(packet: Packet, state: StreamState) -> bool:
    """While tracing is off, TraceEn may be cleared and set again without a packet, and the counter
    restarts.
    """
    return state.tracing is True and state.previous == "CYC" and packet.fields["cycles"] == 0


def _contradicts_transaction(packet: Packet, state: StreamState) -> str:
    if state.psb_plus is not None or state.in_tx is None or state.tracing is not True:
        return ""
    begins = bool(packet.fields["in_tx"])
    if begins == state.in_tx:
        return "begins within one" if begins else "ends none"
    return ""


POSITION_RULES = (
    PacketRule(
        Rule("in-psb-plus", "33.3.7", "a PSB+ holds status and time alone, up to PSBEND or OVF"),
        frozenset(NAMES) - _IN_PSB_PLUS,
        lambda _packet, state: state.psb_plus is not None,
    ),
    PacketRule(
        Rule("psb-plus-once", "33.3.7", "a PSB+ reports each state once"),
        _ONCE_IN_PSB_PLUS,
        lambda packet, state: state.psb_plus is not None and packet.name in state.psb_plus,
    ),
    PacketRule(
        Rule("psb-plus-whole", "33.3.7", "a PSB+ reports all that the enables demand"),
        frozenset({"PSBEND"}),
        _lacks_in_psb_plus,
    ),
    PacketRule(
        Rule("psb-plus-off", "33.3.7", "a PSB+ has no IP or mode while tracing is off", ("BDM70",)),
        frozenset({"PSBEND"}),
        _exceeds_psb_plus,
    ),
    PacketRule(
        Rule("psbend", "33.4.2.18", "a PSBEND ends a PSB+"),
        frozenset({"PSBEND"}),
        lambda _packet, state: state.psb_plus is None,
    ),
    PacketRule(
        Rule("psb-period", "33.4.2.17", "a PSB comes each time that PSBFreq asks for it"),
        frozenset({"PSB"}),
        _is_psb_overdue,
    ),
    PacketRule(
        Rule("in-block", "Table 33-15", "the packet may come between BBP and BEP"),
        FORBIDDEN_IN_BLOCK,
        lambda _packet, state: state.block is not None,
    ),
    PacketRule(
        Rule("bep", "33.4.2.28", "a BEP ends a block"),
        frozenset({"BEP"}),
        lambda _packet, state: state.block is None and state.psb is not None,
    ),
    PacketRule(
        Rule(
            "off", "33.2.6", "tracing is on where a TNT, TIP or TIP.PGD comes", ("APL11", "SKD010")
        ),
        frozenset({"TNT", "TNT.64", "TIP", "TIP.PGD"}),
        _is_tracing_off,
    ),
    PacketRule(
        Rule("on", "33.4.2.4", "tracing is off where a TIP.PGE comes", ("BDM70", "APL12")),
        frozenset({"TIP.PGE"}),
        lambda _packet, state: state.tracing is True and not state.in_event,
    ),
    PacketRule(
        Rule(
            "after-overflow",
            "33.3.8",
            "a FUP or TIP.PGE reports where execution continues",
            ("SKD010", "APL11"),
        ),
        frozenset({"TNT", "TNT.64", "TIP", "TIP.PGD"}),
        lambda _packet, state: state.overflowed,
    ),
    PacketRule(
        Rule("asleep", "33.4.2.24", "nothing runs between PWRE and PWRX"),
        frozenset({"TNT", "TNT.64", "TIP", "PTW", "MWAIT", "MODE.TSX"}),
        lambda _packet, state: state.asleep is True and state.psb_plus is None,
    ),
    PacketRule(
        Rule("pwrx", "33.4.2.25", "a PWRX comes after a PWRE"),
        frozenset({"PWRX"}),
        lambda _packet, state: state.asleep is False and state.tracing is True,
    ),
    PacketRule(
        Rule("transaction", "33.2.9.1", "a transaction begins once, and ends once"),
        frozenset({"MODE.TSX"}),
        _contradicts_transaction,
    ),
    PacketRule(
        Rule("tma", "33.4.2.13", "a TMA comes after its TSC, with only timing between", ("SKZ84",)),
        frozenset({"TMA"}),
        lambda _packet, state: state.psb_plus is None and state.tsc is False,
    ),
    PacketRule(
        Rule("mtc", "33.4.2.12", "an MTC has another value than the one before"),
        frozenset({"MTC"}),
        _skips_mtc,
    ),
    PacketRule(
        Rule("cyc", "33.4.2.14", "a core clock has one CYC at most"),
        frozenset({"CYC"}),
        _cyc_without_time,
    ),
)
"""The rules, a row each."""
