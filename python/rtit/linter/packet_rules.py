"""Rules about the bits of a single packet (section 33.4.2)."""

from __future__ import annotations

from rtit.linter.rules import PacketRule, Rule
from rtit.linter.stream_state import IP_PACKETS, StreamState, int_field
from rtit.packets import BLOCK_TYPES, CFE_TYPES, EVD_TYPES, Packet, encode_cyc, item_name
from rtit.packets.packet import reserved_mask
from rtit.packets.table import DECLARATION_BY_NAME

_ALLOWED_VALUES = {"BBP": BLOCK_TYPES, "CFE": CFE_TYPES.keys() - {0xE, 0xF}, "EVD": EVD_TYPES}
"""Types that the chapter has: those of FRED are later."""
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
    ip = state.ip(packet) if packet.fields["ip_bytes"] in (1, 2, 4) else None
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
        Rule("reserved-type", "Tables 33-45, 33-50, 33-51", "the type is none that is reserved"),
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
        Rule("ip-suppressed", "33.4.2.2, 33.4.2.5", "only a TIP.PGD goes without its IP"),
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
        Rule("ip-bit", "33.4.2.22, 33.4.2.26", "IP is 1 while tracing is on, for a FUP follows"),
        frozenset({"EXSTOP", "BEP"}),
        _lacks_ip_bit,
    ),
)
"""The rules, a row each."""
