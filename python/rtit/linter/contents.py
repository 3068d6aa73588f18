"""Rules about a packet's own bits (section 33.4.2)."""

from __future__ import annotations

from rtit.linter.rules import Check, Rule
from rtit.linter.state import IP_PACKETS, State, number
from rtit.packets import BLOCK_TYPES, CFE_TYPES, EVD_TYPES, Packet, encode_cyc, item_name
from rtit.packets.packet import reserved_mask
from rtit.packets.table import BY_NAME

_VALUES = {"BBP": BLOCK_TYPES, "CFE": CFE_TYPES.keys() - {0xE, 0xF}, "EVD": EVD_TYPES}
"""Types that the chapter has: those of FRED are later."""
_MASKS = {
    (row.name, row.size): int.from_bytes(reserved_mask(row, row.size), "little")
    for row in BY_NAME.values()
    if row.defined and row.payload is None and any(reserved_mask(row, row.size))
}
_WITHOUT_FUP = {"SIPI", "RSM"}
"""Events that have no FUP (Table 33-50)."""


def _reserved_bits(packet: Packet, _state: State) -> str:
    mask = _MASKS.get((packet.name, packet.size), 0)
    word = int.from_bytes(packet.raw, "little")
    return packet.raw.hex(" ") if mask and word & mask else ""


def _reserved_value(packet: Packet, _state: State) -> str:
    value = number(packet, "type")
    return "" if value in _VALUES[packet.name] else f"{value:#x}"


def _item(packet: Packet, state: State) -> str:
    item, block = number(packet, "id"), state.block
    if block not in BLOCK_TYPES or item_name(block, item):
        return ""
    return f"type {block:#x}, ID {item:#x}"


def _long_cyc(packet: Packet, _state: State) -> str:
    cycles = number(packet, "cycles")
    return f"{cycles} in {packet.size} bytes" if packet.size > len(encode_cyc(cycles)) else ""


def _suppressed(packet: Packet, _state: State) -> bool:
    return packet.fields["ip_bytes"] == 0


def _not_canonical(packet: Packet, state: State) -> str:
    ip = state.ip(packet) if packet.fields["ip_bytes"] in (1, 2, 4) else None
    return "" if ip is None or ip >> 56 in (0, 0xFF) else f"{ip:#x}"


def _wake(packet: Packet, _state: State) -> str:
    wake = number(packet, "wake")
    return "" if wake.bit_count() == 1 else f"{wake:#x}"


def _no_fup(packet: Packet, _state: State) -> str:
    name = CFE_TYPES.get(number(packet, "type"), "")
    return f"{name} with IP=1" if name in _WITHOUT_FUP and packet.fields["ip"] else ""


def _ip_bit_clear(packet: Packet, state: State) -> bool:
    return state.tracing is True and state.psb_plus is None and not packet.fields["ip"]


CONTENTS = (
    Check(
        Rule("defined", "33.4.2", "the packet is one that the chapter defines"),
        frozenset(row.name for row in BY_NAME.values() if not row.defined),
        lambda packet, _state: packet.raw[:1].hex(),
    ),
    Check(
        Rule("reserved-bits", "33.4.2", "reserved bits are 0", ("SKZ84",)),
        frozenset(name for name, _ in _MASKS),
        _reserved_bits,
    ),
    Check(
        Rule("reserved-type", "Tables 33-45, 33-50, 33-51", "the type is none that is reserved"),
        frozenset(_VALUES),
        _reserved_value,
    ),
    Check(
        Rule("block-item", "Table 33-47", "the block's type has an item of this ID"),
        frozenset({"BIP"}),
        _item,
    ),
    Check(
        Rule("cyc-length", "33.4.2.14", "a CYC is as short as its count allows"),
        frozenset({"CYC"}),
        _long_cyc,
    ),
    Check(
        Rule("ip-suppressed", "33.4.2.2, 33.4.2.5", "only a TIP.PGD goes without its IP"),
        IP_PACKETS - {"TIP.PGD"},
        _suppressed,
    ),
    Check(
        Rule("ip-canonical", "33.4.2.2", "an IP that was compressed against LastIP is canonical"),
        IP_PACKETS - {"FUP"},
        _not_canonical,
    ),
    Check(
        Rule("wake-reason", "33.4.2.25", "one bit of the wake reason is set"),
        frozenset({"PWRX"}),
        _wake,
    ),
    Check(
        Rule("cfe-without-ip", "Table 33-50", "an event without a FUP has IP=0"),
        frozenset({"CFE"}),
        _no_fup,
    ),
    Check(
        Rule("ip-bit", "33.4.2.22, 33.4.2.26", "IP is 1 while tracing is on, for a FUP follows"),
        frozenset({"EXSTOP", "BEP"}),
        _ip_bit_clear,
    ),
)
"""The rules, a row each."""
