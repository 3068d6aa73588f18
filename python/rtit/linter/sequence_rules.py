"""Rules about the packets that must follow a packet (section 33.4.1): the owner of a FUP,
the end of a compound event.

`SEQUENCE_RULES` declares them. `PendingObligations` tracks those that a stream has still to meet.
"""

from __future__ import annotations

from collections.abc import Generator

from rtit.linter.rules import Finding, Rule, SequenceRule
from rtit.linter.stream_state import CONTEXT_FREE, PSB_PLUS_PACKETS, StreamState, int_field
from rtit.packets import CFE_TYPES, Packet
from rtit.packets.table import DECLARATIONS

_FUP = frozenset({"FUP"})
_TARGET = frozenset({"TIP", "TIP.PGD"})
_STATE_PACKETS = frozenset({"PIP", "VMCS", "MODE.Exec"})


def _has_ip_bit(packet: Packet, _state: StreamState) -> bool:
    return packet.fields["ip"] == 1


def _shares_fup(packet: Packet, state: StreamState) -> bool:
    on = state.tracing is True and not state.in_event
    return on and not packet.fields["ip"]


def _always(_packet: Packet, _state: StreamState) -> bool:
    return True


COMPOUND_EVENTS = SequenceRule(
    Rule(
        "fup",
        "33.4.2.6, Table 33-14",
        "a FUP that belongs to no packet begins an event that has a TIP",
    ),
    "FUP",
    _always,
    _TARGET | {"TIP.PGE"},
    CONTEXT_FREE | _STATE_PACKETS,
)
"""Of a FUP that no packet before it binds. The TIP.PGE is that of an INIT and its SIPI."""

FUP_ALONE = Rule(
    "fup-off",
    "33.4.2.6",
    "a FUP is bound by a packet before it while tracing is off",
    ("SKD010",),
)

SEQUENCE_RULES = (
    SequenceRule(
        Rule("ptw-fup", "33.4.2.21", "a PTW with IP=1 is followed by a FUP"),
        "PTW",
        _has_ip_bit,
        _FUP,
    ),
    SequenceRule(
        Rule("exstop-fup", "33.4.2.22", "an EXSTOP with IP=1 is followed by a FUP"),
        "EXSTOP",
        _has_ip_bit,
        _FUP,
    ),
    SequenceRule(
        Rule("bep-fup", "33.4.2.28", "a BEP with IP=1 is followed by a FUP"),
        "BEP",
        _has_ip_bit,
        _FUP,
    ),
    SequenceRule(
        Rule("cfe-fup", "33.4.2.29", "a CFE with IP=1 is followed by a FUP"),
        "CFE",
        _has_ip_bit,
        _FUP,
        CONTEXT_FREE | {"CFE", "EVD"},
    ),
    SequenceRule(
        Rule("cfe-shared", "33.4.2.29", "a CFE with IP=0 shares the FUP of its event"),
        "CFE",
        _shares_fup,
        _FUP,
        CONTEXT_FREE | {"CFE", "EVD"},
        binds=False,
    ),
    SequenceRule(
        Rule("evd-cfe", "33.4.2.30", "an EVD is followed by its CFE"),
        "EVD",
        _always,
        frozenset({"CFE"}),
        CONTEXT_FREE | {"EVD"},
    ),
    SequenceRule(
        Rule("mode-exec", "33.4.2.8", "a MODE.Exec is followed by an IP"),
        "MODE.Exec",
        _always,
        _TARGET | _FUP | {"TIP.PGE"},
        CONTEXT_FREE | _STATE_PACKETS,
    ),
    SequenceRule(
        Rule("mode-tsx", "33.4.2.8", "a MODE.TSX is right before a FUP while tracing is on"),
        "MODE.TSX",
        lambda packet, state: state.tracing is True and not packet.fields["tx_abort"],
        _FUP,
    ),
    SequenceRule(
        Rule("abort-fup", "33.4.2.8", "a MODE.TSX is right before a FUP while tracing is on"),
        "MODE.TSX",
        lambda packet, state: state.tracing is True and packet.fields["tx_abort"] == 1,
        _FUP,
        then=SequenceRule(
            Rule("abort-tip", "Table 33-10", "the FUP of an abort is followed by its TIP"),
            "FUP",
            _always,
            _TARGET,
            CONTEXT_FREE | _STATE_PACKETS,
        ),
    ),
    SequenceRule(
        Rule("mwait-exstop", "33.4.2.23", "an MWAIT is followed by its EXSTOP"),
        "MWAIT",
        _always,
        frozenset({"EXSTOP"}),
        CONTEXT_FREE | {"PWRE"},
    ),
    SequenceRule(
        Rule("pwre-exstop", "33.4.2.24", "the first PWRE of a sleep is followed by an EXSTOP"),
        "PWRE",
        lambda _packet, state: state.asleep is False and state.tracing is True,
        frozenset({"EXSTOP"}),
    ),
)
"""The rules, a row each."""


_RULES_BY_PACKET: dict[str, tuple[SequenceRule, ...]] = {
    row.name: tuple(follow for follow in SEQUENCE_RULES if follow.after == row.name)
    for row in DECLARATIONS
}


class PendingObligations:
    """The packets that must still follow.

    due: the pending rules, each with the packet that created it. parked: a FUP with an event that
    was incomplete at a PSB. This is legal if the processor waits for a SIPI; the PSB+ then has no
    IP.
    """

    def __init__(self) -> None:
        self.due: list[tuple[SequenceRule, Packet]] = []
        self.parked: Packet | None = None

    def check_packet(self, packet: Packet, state: StreamState) -> Generator[Finding, None, bool]:
        """Yield the findings at a packet; return whether it is a FUP that begins an event.

        `state` is the state before the packet.
        """
        name = packet.name
        if name == "OVF":
            self.__init__()  # type: ignore[misc]  # resets all fields
            return False
        if state.psb_plus is not None:
            if name in PSB_PLUS_PACKETS | CONTEXT_FREE:
                return False
            if self.parked is not None and "FUP" in state.psb_plus:
                yield _missing_packet_finding(COMPOUND_EVENTS, self.parked, packet)
            self.parked = None
        if name == "PSB":
            yield from self._boundary(packet)
            return False
        bound = yield from self._hold(packet)
        begins = name == "FUP" and not bound and not state.overflowed
        if begins and state.tracing is False:
            yield Finding(packet.offset, FUP_ALONE, name, "")
        elif begins:
            self.due.append((COMPOUND_EVENTS, packet))
        for follow in _RULES_BY_PACKET[name]:
            # One that waits already waits for the same: a flood of packets makes no list of them.
            if follow.when(packet, state) and all(each is not follow for each, _ in self.due):
                self.due.append((follow, packet))
        return begins

    def _hold(self, packet: Packet) -> Generator[Finding, None, bool]:
        """What waits for a packet, and what it is not let pass by. True if that binds a FUP."""
        bound = False
        waits = self.due
        self.due = []
        for follow, origin in waits:
            if packet.name in follow.until:
                bound |= follow.binds
                if follow.then is not None:
                    self.due.append((follow.then, origin))
            elif packet.name in follow.between:
                self.due.append((follow, origin))
            elif not (follow is COMPOUND_EVENTS and _is_sipi(packet)):
                yield _missing_packet_finding(follow, origin, packet)
        return bound

    def _boundary(self, packet: Packet) -> Generator[Finding]:
        """A PSB: all events are complete (section 33.3.7)."""
        for follow, origin in self.due:
            if follow is COMPOUND_EVENTS:
                self.parked = origin
            else:
                yield _missing_packet_finding(follow, origin, packet)
        self.due = []


def _is_sipi(packet: Packet) -> bool:
    return packet.name == "CFE" and CFE_TYPES.get(int_field(packet, "type")) == "SIPI"


def _missing_packet_finding(follow: SequenceRule, origin: Packet, packet: Packet) -> Finding:
    detail = f"{packet.name} comes; asked for by {origin.name} at {origin.offset:#x}"
    return Finding(packet.offset, follow.rule, packet.name, detail)
