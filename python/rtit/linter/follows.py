"""Rules about what comes after a packet: whose a FUP is, and how a compound event ends (33.4.1)."""

from __future__ import annotations

from rtit.linter.rules import Follow, Rule
from rtit.linter.state import NEUTRAL, State
from rtit.packets import Packet

_FUP = frozenset({"FUP"})
_TARGET = frozenset({"TIP", "TIP.PGD"})
_STATE = frozenset({"PIP", "VMCS", "MODE.Exec"})


def _ip_bit(packet: Packet, _state: State) -> bool:
    return packet.fields["ip"] == 1


def _shares(packet: Packet, state: State) -> bool:
    on = state.tracing is True and not state.in_event
    return on and not packet.fields["ip"]


def _always(_packet: Packet, _state: State) -> bool:
    return True


COMPOUND = Follow(
    Rule("fup", "33.4.2.6, Table 33-14", "a FUP that is nobody's begins an event that has a TIP"),
    "FUP",
    _always,
    _TARGET | {"TIP.PGE"},
    NEUTRAL | _STATE,
)
"""Of a FUP that no packet before it binds. The TIP.PGE is that of an INIT and its SIPI."""

ALONE = Rule(
    "fup-off",
    "33.4.2.6",
    "a FUP is bound by a packet before it while tracing is off",
    ("SKD010",),
)

FOLLOWS = (
    Follow(
        Rule("ptw-fup", "33.4.2.21", "a PTW with IP=1 is followed by a FUP"),
        "PTW",
        _ip_bit,
        _FUP,
    ),
    Follow(
        Rule("exstop-fup", "33.4.2.22", "an EXSTOP with IP=1 is followed by a FUP"),
        "EXSTOP",
        _ip_bit,
        _FUP,
    ),
    Follow(
        Rule("bep-fup", "33.4.2.28", "a BEP with IP=1 is followed by a FUP"),
        "BEP",
        _ip_bit,
        _FUP,
    ),
    Follow(
        Rule("cfe-fup", "33.4.2.29", "a CFE with IP=1 is followed by a FUP"),
        "CFE",
        _ip_bit,
        _FUP,
        NEUTRAL | {"CFE", "EVD"},
    ),
    Follow(
        Rule("cfe-shared", "33.4.2.29", "a CFE with IP=0 shares the FUP of its event"),
        "CFE",
        _shares,
        _FUP,
        NEUTRAL | {"CFE", "EVD"},
        binds=False,
    ),
    Follow(
        Rule("evd-cfe", "33.4.2.30", "an EVD is followed by its CFE"),
        "EVD",
        _always,
        frozenset({"CFE"}),
        NEUTRAL | {"EVD"},
    ),
    Follow(
        Rule("mode-exec", "33.4.2.8", "a MODE.Exec is followed by an IP"),
        "MODE.Exec",
        _always,
        _TARGET | _FUP | {"TIP.PGE"},
        NEUTRAL | _STATE,
    ),
    Follow(
        Rule("mode-tsx", "33.4.2.8", "a MODE.TSX is right before a FUP while tracing is on"),
        "MODE.TSX",
        lambda packet, state: state.tracing is True and not packet.fields["tx_abort"],
        _FUP,
    ),
    Follow(
        Rule("abort-fup", "33.4.2.8", "a MODE.TSX is right before a FUP while tracing is on"),
        "MODE.TSX",
        lambda packet, state: state.tracing is True and packet.fields["tx_abort"] == 1,
        _FUP,
        then=Follow(
            Rule("abort-tip", "Table 33-10", "the FUP of an abort is followed by its TIP"),
            "FUP",
            _always,
            _TARGET,
            NEUTRAL | _STATE,
        ),
    ),
    Follow(
        Rule("mwait-exstop", "33.4.2.23", "an MWAIT is followed by its EXSTOP"),
        "MWAIT",
        _always,
        frozenset({"EXSTOP"}),
        NEUTRAL | {"PWRE"},
    ),
    Follow(
        Rule("pwre-exstop", "33.4.2.24", "the first PWRE of a sleep is followed by an EXSTOP"),
        "PWRE",
        lambda _packet, state: state.asleep is False and state.tracing is True,
        frozenset({"EXSTOP"}),
    ),
)
"""The rules, a row each."""
