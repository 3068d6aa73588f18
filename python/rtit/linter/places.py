"""Rules about where a packet may stand: PSB+, blocks, on and off, time."""

from __future__ import annotations

from rtit.linter.rules import Check, Rule
from rtit.linter.state import NEUTRAL, PSB_PLUS, State
from rtit.packets import FORBIDDEN_IN_BLOCK, NAMES, Packet

_ONCE = frozenset({"PIP", "VMCS", "MODE.TSX", "MODE.Exec", "FUP"})
_IN_PSB_PLUS = PSB_PLUS | NEUTRAL | {"PSBEND", "OVF"}
_LONGEST_PERIOD = 1 << 26
"""Bytes between PSBs at the largest PSBFreq (Table 33-6)."""


def _off(_packet: Packet, state: State) -> bool:
    return state.tracing is False and state.psb_plus is None


def _missing(packet: Packet, state: State) -> str:
    """What a PSB+ that ends with this packet should have told."""
    if packet.name != "PSBEND" or state.psb_plus is None:
        return ""
    on = state.tracing is True and not state.in_event
    want = {"CBR"} | ({"MODE.TSX", "MODE.Exec", "FUP"} if on else set())
    if "FUP" in state.psb_plus or "MODE.Exec" in state.psb_plus:
        want |= {"MODE.TSX", "MODE.Exec", "FUP"}
    return " ".join(sorted(want - state.psb_plus))


def _too_much(packet: Packet, state: State) -> str:
    if packet.name != "PSBEND" or state.psb_plus is None or state.tracing is not False:
        return ""
    return " ".join(sorted(state.psb_plus & {"MODE.Exec", "FUP"}))


def _far_psb(packet: Packet, state: State) -> str:
    most = 2 * (state.psb_period or _LONGEST_PERIOD)
    gap = 0 if state.psb is None else packet.offset - state.psb
    return f"{gap:,} bytes after the last" if gap > most else ""


def _mtc(packet: Packet, state: State) -> str:
    same = state.mtc is not None and packet.fields["ctc"] == state.mtc
    return f"{state.mtc:#x} again" if same else ""


def _cyc(packet: Packet, state: State) -> bool:
    """While tracing is off, TraceEn may be cleared and set again without a packet, and the counter
    begins anew.
    """
    return state.tracing is True and state.previous == "CYC" and packet.fields["cycles"] == 0


def _tsx(packet: Packet, state: State) -> str:
    if state.psb_plus is not None or state.in_tx is None or state.tracing is not True:
        return ""
    begins = bool(packet.fields["in_tx"])
    if begins == state.in_tx:
        return "begins within one" if begins else "ends none"
    return ""


PLACES = (
    Check(
        Rule("in-psb-plus", "33.3.7", "a PSB+ holds status and time alone, up to PSBEND or OVF"),
        frozenset(NAMES) - _IN_PSB_PLUS,
        lambda _packet, state: state.psb_plus is not None,
    ),
    Check(
        Rule("psb-plus-once", "33.3.7", "a PSB+ tells each state once"),
        _ONCE,
        lambda packet, state: state.psb_plus is not None and packet.name in state.psb_plus,
    ),
    Check(
        Rule("psb-plus-whole", "33.3.7", "a PSB+ tells all that the enables ask for"),
        frozenset({"PSBEND"}),
        _missing,
    ),
    Check(
        Rule("psb-plus-off", "33.3.7", "a PSB+ has no IP or mode while tracing is off", ("BDM70",)),
        frozenset({"PSBEND"}),
        _too_much,
    ),
    Check(
        Rule("psbend", "33.4.2.18", "a PSBEND ends a PSB+"),
        frozenset({"PSBEND"}),
        lambda _packet, state: state.psb_plus is None,
    ),
    Check(
        Rule("psb-period", "33.4.2.17", "a PSB comes each time that PSBFreq asks for it"),
        frozenset({"PSB"}),
        _far_psb,
    ),
    Check(
        Rule("in-block", "Table 33-15", "the packet may come between BBP and BEP"),
        FORBIDDEN_IN_BLOCK,
        lambda _packet, state: state.block is not None,
    ),
    Check(
        Rule("bep", "33.4.2.28", "a BEP ends a block"),
        frozenset({"BEP"}),
        lambda _packet, state: state.block is None and state.psb is not None,
    ),
    Check(
        Rule(
            "off", "33.2.6", "tracing is on where a TNT, TIP or TIP.PGD comes", ("APL11", "SKD010")
        ),
        frozenset({"TNT", "TNT.64", "TIP", "TIP.PGD"}),
        _off,
    ),
    Check(
        Rule("on", "33.4.2.4", "tracing is off where a TIP.PGE comes", ("BDM70", "APL12")),
        frozenset({"TIP.PGE"}),
        lambda _packet, state: state.tracing is True and not state.in_event,
    ),
    Check(
        Rule(
            "after-overflow",
            "33.3.8",
            "a FUP or TIP.PGE tells where it goes on",
            ("SKD010", "APL11"),
        ),
        frozenset({"TNT", "TNT.64", "TIP", "TIP.PGD"}),
        lambda _packet, state: state.overflowed,
    ),
    Check(
        Rule("asleep", "33.4.2.24", "nothing runs between PWRE and PWRX"),
        frozenset({"TNT", "TNT.64", "TIP", "PTW", "MWAIT", "MODE.TSX"}),
        lambda _packet, state: state.asleep is True and state.psb_plus is None,
    ),
    Check(
        Rule("pwrx", "33.4.2.25", "a PWRX comes after a PWRE"),
        frozenset({"PWRX"}),
        lambda _packet, state: state.asleep is False and state.tracing is True,
    ),
    Check(
        Rule("transaction", "33.2.9.1", "a transaction begins once, and ends once"),
        frozenset({"MODE.TSX"}),
        _tsx,
    ),
    Check(
        Rule("tma", "33.4.2.13", "a TMA comes after its TSC, with only timing between", ("SKZ84",)),
        frozenset({"TMA"}),
        lambda _packet, state: state.psb_plus is None and state.tsc is False,
    ),
    Check(
        Rule("mtc", "33.4.2.12", "an MTC tells a value other than the one before"),
        frozenset({"MTC"}),
        _mtc,
    ),
    Check(
        Rule("cyc", "33.4.2.14", "a core clock has one CYC at most"),
        frozenset({"CYC"}),
        _cyc,
    ),
)
"""The rules, a row each."""
