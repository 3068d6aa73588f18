"""The rules of the linter, a row each, and their types.

* `PACKET_RULES`: the bits of a single packet (section 33.4.2).
* `POSITION_RULES`: the positions of a packet: PSB+, blocks, tracing on or off, time.
* `SEQUENCE_RULES`: packets that must follow a packet (section 33.4.1): the FUP of a packet, the end
  of a compound event. `PendingObligations` tracks those that must still follow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from rtit.linter.stream_state import (
    CONTEXT_FREE,
    IP_PACKETS,
    PSB_PLUS_PACKETS,
    StreamState,
    int_field,
)
from rtit.packets import (
    BLOCK_TYPES,
    CFE_TYPES,
    EVD_TYPES,
    FORBIDDEN_IN_BLOCK,
    NAMES,
    Packet,
    encode_cyc,
    item_name,
)
from rtit.packets.packet import reserved_mask
from rtit.packets.table import DECLARATION_BY_NAME


@dataclass(frozen=True, slots=True)
class Rule:
    """A requirement of the chapter on the packet stream.

    name: one word, for filters. section: section or table of the chapter. says: the requirement.
    errata: processors with one of these (`rtit.registers.errata`) violate it.
    """

    name: str
    section: str
    says: str
    errata: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation of a rule at a packet.

    offset: of the packet, in bytes. packet: its name, "" for bad bytes. detail: the bad value, or
    "".
    """

    offset: int
    rule: Rule
    packet: str
    detail: str

    def __str__(self) -> str:
        place = f"{self.offset:08x}  {self.packet}: " if self.packet else f"{self.offset:08x}  "
        detail = f" ({self.detail})" if self.detail else ""
        return f"{place}{self.rule.says}{detail} [{self.rule.name}, {self.rule.section}]"


@dataclass(frozen=True, slots=True)
class PacketRule:
    """A rule on the contents or the position of a packet.

    names: the packets that it concerns. broken: returns, for a packet and the state before it,
    False or "" if the rule holds, else True or the detail of the finding.
    """

    rule: Rule
    names: frozenset[str]
    broken: Callable[[Packet, StreamState], bool | str]


@dataclass(frozen=True, slots=True)
class SequenceRule:
    """A rule on the packets after a packet.

    after: the packet that creates the obligation, if `when` is true. until: one of these must
    follow; between: these may precede it. binds: a FUP belongs to the packet and does not begin a
    compound event. then: the rule for the packets after `until`.
    """

    rule: Rule
    after: str
    when: Callable[[Packet, StreamState], bool]
    until: frozenset[str]
    between: frozenset[str] = CONTEXT_FREE
    binds: bool = True
    then: SequenceRule | None = None

    def rules_in_sequence(self) -> Iterator[SequenceRule]:
        """Yield this rule, and the rules that follow it by `then`."""
        yield self
        if self.then is not None:
            yield from self.then.rules_in_sequence()


_ALLOWED_VALUES = {"BBP": BLOCK_TYPES, "CFE": CFE_TYPES.keys() - {0xE, 0xF}, "EVD": EVD_TYPES}
"""Types in the chapter; those of FRED are newer."""
_ALLOWED_MASKS = {
    (row.name, row.size): int.from_bytes(reserved_mask(row, row.size), "little")
    for row in DECLARATION_BY_NAME.values()
    if row.defined and row.payload is None and any(reserved_mask(row, row.size))
}
_WITHOUT_FUP = {"SIPI", "RSM"}
"""Events that have no FUP (Table 33-50)."""


def _has_reserved_bits(packet: Packet, _state: StreamState) -> str:
    mask = _ALLOWED_MASKS.get((packet.name, packet.size), 0)
    word = int.from_bytes(packet.raw, "little")
    return packet.raw.hex(" ") if mask and word & mask else ""


def _has_reserved_value(packet: Packet, _state: StreamState) -> str:
    value = int_field(packet, "type")
    return "" if value in _ALLOWED_VALUES[packet.name] else f"{value:#x}"


def _has_reserved_item(packet: Packet, state: StreamState) -> str:
    item, block = int_field(packet, "id"), state.block
    if block not in BLOCK_TYPES or item_name(block, item):
        return ""
    return f"type {block:#x}, ID {item:#x}"


def _is_long_cyc(packet: Packet, _state: StreamState) -> str:
    cycles = int_field(packet, "cycles")
    return f"{cycles} in {packet.size} bytes" if packet.size > len(encode_cyc(cycles)) else ""


def _has_suppressed_ip(packet: Packet, _state: StreamState) -> bool:
    return packet.fields["ip_bytes"] == 0


def _is_not_canonical(packet: Packet, state: StreamState) -> str:
    ip = state.ip_of_packet(packet) if packet.fields["ip_bytes"] in (1, 2, 4) else None
    return "" if ip is None or ip >> 56 in (0, 0xFF) else f"{ip:#x}"


def _has_bad_wake_reason(packet: Packet, _state: StreamState) -> str:
    wake = int_field(packet, "wake")
    return "" if wake.bit_count() == 1 else f"{wake:#x}"


def _promises_missing_fup(packet: Packet, _state: StreamState) -> str:
    name = CFE_TYPES.get(int_field(packet, "type"), "")
    return f"{name} with IP=1" if name in _WITHOUT_FUP and packet.fields["ip"] else ""


def _lacks_ip_bit(packet: Packet, state: StreamState) -> bool:
    return state.tracing is True and state.psb_plus is None and not packet.fields["ip"]


PACKET_RULES = (
    PacketRule(
        Rule("defined", "33.4.2", "the packet is one that the chapter defines"),
        frozenset(row.name for row in DECLARATION_BY_NAME.values() if not row.defined),
        lambda packet, _state: packet.raw[:1].hex(),
    ),
    PacketRule(
        Rule("reserved-bits", "33.4.2", "reserved bits are 0", ("SKZ84",)),
        frozenset(name for name, _ in _ALLOWED_MASKS),
        _has_reserved_bits,
    ),
    PacketRule(
        Rule("reserved-type", "Tables 33-45, 33-50, 33-51", "the type is not reserved"),
        frozenset(_ALLOWED_VALUES),
        _has_reserved_value,
    ),
    PacketRule(
        Rule("block-item", "Table 33-47", "the block's type has an item of this ID"),
        frozenset({"BIP"}),
        _has_reserved_item,
    ),
    PacketRule(
        Rule("cyc-length", "33.4.2.14", "a CYC is as short as its count allows"),
        frozenset({"CYC"}),
        _is_long_cyc,
    ),
    PacketRule(
        Rule("ip-suppressed", "33.4.2.2, 33.4.2.5", "only a TIP.PGD may lack its IP"),
        IP_PACKETS - {"TIP.PGD"},
        _has_suppressed_ip,
    ),
    PacketRule(
        Rule("ip-canonical", "33.4.2.2", "an IP that was compressed against LastIP is canonical"),
        IP_PACKETS - {"FUP"},
        _is_not_canonical,
    ),
    PacketRule(
        Rule("wake-reason", "33.4.2.25", "one bit of the wake reason is set"),
        frozenset({"PWRX"}),
        _has_bad_wake_reason,
    ),
    PacketRule(
        Rule("cfe-without-ip", "Table 33-50", "an event without a FUP has IP=0"),
        frozenset({"CFE"}),
        _promises_missing_fup,
    ),
    PacketRule(
        Rule(
            "ip-bit", "33.4.2.22, 33.4.2.26", "IP is 1 while tracing is on, because a FUP follows"
        ),
        frozenset({"EXSTOP", "BEP"}),
        _lacks_ip_bit,
    ),
)

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
    """Return whether a CYC without cycles follows a CYC while tracing is on.

    While tracing is off, TraceEn may change without a packet, and the counter restarts.
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
        Rule("in-psb-plus", "33.3.7", "a PSB+ holds only status and time, up to PSBEND or OVF"),
        frozenset(NAMES) - _IN_PSB_PLUS,
        lambda _packet, state: state.psb_plus is not None,
    ),
    PacketRule(
        Rule("psb-plus-once", "33.3.7", "a PSB+ reports each state once"),
        _ONCE_IN_PSB_PLUS,
        lambda packet, state: state.psb_plus is not None and packet.name in state.psb_plus,
    ),
    PacketRule(
        Rule("psb-plus-whole", "33.3.7", "a PSB+ reports all state that the enables require"),
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
        Rule("psb-period", "33.4.2.17", "a PSB follows after each period of PSBFreq"),
        frozenset({"PSB"}),
        _is_psb_overdue,
    ),
    PacketRule(
        Rule("in-block", "Table 33-15", "the packet may occur between BBP and BEP"),
        FORBIDDEN_IN_BLOCK,
        lambda _packet, state: state.block is not None,
    ),
    PacketRule(
        Rule("bep", "33.4.2.28", "a BEP ends a block"),
        frozenset({"BEP"}),
        lambda _packet, state: state.block is None and state.psb is not None,
    ),
    PacketRule(
        Rule("off", "33.2.6", "tracing is on at a TNT, TIP or TIP.PGD", ("APL11", "SKD010")),
        frozenset({"TNT", "TNT.64", "TIP", "TIP.PGD"}),
        _is_tracing_off,
    ),
    PacketRule(
        Rule("on", "33.4.2.4", "tracing is off at a TIP.PGE", ("BDM70", "APL12")),
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
        Rule("pwrx", "33.4.2.25", "a PWRX follows a PWRE"),
        frozenset({"PWRX"}),
        lambda _packet, state: state.asleep is False and state.tracing is True,
    ),
    PacketRule(
        Rule("transaction", "33.2.9.1", "a transaction begins once, and ends once"),
        frozenset({"MODE.TSX"}),
        _contradicts_transaction,
    ),
    PacketRule(
        Rule("tma", "33.4.2.13", "a TMA follows its TSC, with only timing between", ("SKZ84",)),
        frozenset({"TMA"}),
        lambda _packet, state: state.psb_plus is None and state.tsc is False,
    ),
    PacketRule(
        Rule("mtc", "33.4.2.12", "an MTC has another value than the one before"),
        frozenset({"MTC"}),
        _skips_mtc,
    ),
    PacketRule(
        Rule("cyc", "33.4.2.14", "a core clock has at most one CYC"),
        frozenset({"CYC"}),
        _cyc_without_time,
    ),
)

_FUP = frozenset({"FUP"})
_TARGET = frozenset({"TIP", "TIP.PGD"})
_STATE_PACKETS = frozenset({"PIP", "VMCS", "MODE.Exec"})


def _has_ip_bit(packet: Packet, _state: StreamState) -> bool:
    return packet.fields["ip"] == 1


def _shares_fup(packet: Packet, state: StreamState) -> bool:
    on = state.tracing is True and not state.in_event
    return on and not packet.fields["ip"]


def _applies_to_every_packet(_packet: Packet, _state: StreamState) -> bool:
    return True


COMPOUND_EVENTS = SequenceRule(
    Rule(
        "fup",
        "33.4.2.6, Table 33-14",
        "a FUP that no packet binds begins an event with a TIP",
    ),
    "FUP",
    _applies_to_every_packet,
    _TARGET | {"TIP.PGE"},
    CONTEXT_FREE | _STATE_PACKETS,
)
"""Applies to a FUP that no earlier packet binds. The TIP.PGE is that of an INIT and its SIPI."""

FUP_ALONE = Rule(
    "fup-off", "33.4.2.6", "while tracing is off, an earlier packet binds a FUP", ("SKD010",)
)

SEQUENCE_RULES = (
    *(
        SequenceRule(
            Rule(
                f"{name.lower()}-fup", section, f"{article} {name} with IP=1 is followed by a FUP"
            ),
            name,
            _has_ip_bit,
            _FUP,
        )
        for article, name, section in (
            ("a", "PTW", "33.4.2.21"),
            ("an", "EXSTOP", "33.4.2.22"),
            ("a", "BEP", "33.4.2.28"),
        )
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
        _applies_to_every_packet,
        frozenset({"CFE"}),
        CONTEXT_FREE | {"EVD"},
    ),
    SequenceRule(
        Rule("mode-exec", "33.4.2.8", "a MODE.Exec is followed by an IP"),
        "MODE.Exec",
        _applies_to_every_packet,
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
            _applies_to_every_packet,
            _TARGET,
            CONTEXT_FREE | _STATE_PACKETS,
        ),
    ),
    SequenceRule(
        Rule("mwait-exstop", "33.4.2.23", "an MWAIT is followed by its EXSTOP"),
        "MWAIT",
        _applies_to_every_packet,
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

_SEQUENCES_BY_PACKET = {
    name: [follow for follow in SEQUENCE_RULES if follow.after == name]
    for name in {each.after for each in SEQUENCE_RULES}
}


class PendingObligations:
    """The packets that must still follow.

    due: the pending rules, each with the packet that created it. incomplete_at_psb: a FUP with an
    event that was incomplete at a PSB. This is legal if the processor waits for a SIPI; the PSB+
    then has no IP.
    """

    def __init__(self) -> None:
        self.due: list[tuple[SequenceRule, Packet]] = []
        self.incomplete_at_psb: Packet | None = None

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
            if self.incomplete_at_psb is not None and "FUP" in state.psb_plus:
                yield _missing_packet_finding(COMPOUND_EVENTS, self.incomplete_at_psb, packet)
            self.incomplete_at_psb = None
        if name == "PSB":
            yield from self._check_psb(packet)
            return False
        bound = yield from self._check_pending(packet)
        begins = name == "FUP" and not bound and not state.overflowed
        if begins and state.tracing is False:
            yield Finding(packet.offset, FUP_ALONE, name, "")
        elif begins:
            self.due.append((COMPOUND_EVENTS, packet))
        for follow in _SEQUENCES_BY_PACKET.get(name, ()):
            # a rule that is already pending covers this packet too, so `due` stays short
            if follow.when(packet, state) and all(each is not follow for each, _ in self.due):
                self.due.append((follow, packet))
        return begins

    def _check_pending(self, packet: Packet) -> Generator[Finding, None, bool]:
        """Yield the pending rules that a packet breaks; return whether one binds it as a FUP."""
        bound = False
        pending, self.due = self.due, []
        for follow, origin in pending:
            if packet.name in follow.until:
                bound |= follow.binds
                if follow.then is not None:
                    self.due.append((follow.then, origin))
            elif packet.name in follow.between:
                self.due.append((follow, origin))
            elif not (follow is COMPOUND_EVENTS and _is_sipi(packet)):
                yield _missing_packet_finding(follow, origin, packet)
        return bound

    def _check_psb(self, packet: Packet) -> Generator[Finding]:
        """Yield the rules that are pending at a PSB, where events are complete (section 33.3.7)."""
        for follow, origin in self.due:
            if follow is COMPOUND_EVENTS:
                self.incomplete_at_psb = origin
            else:
                yield _missing_packet_finding(follow, origin, packet)
        self.due = []


def _is_sipi(packet: Packet) -> bool:
    return packet.name == "CFE" and CFE_TYPES.get(int_field(packet, "type")) == "SIPI"


def _missing_packet_finding(follow: SequenceRule, origin: Packet, packet: Packet) -> Finding:
    detail = f"{packet.name} follows {origin.name} at {origin.offset:#x}"
    return Finding(packet.offset, follow.rule, packet.name, detail)
