"""Every packet of section 33.4.2, declared once, and the items of packet blocks (Table 33-47).

A row gives a packet's fixed header bits, its length, its fields by byte and bit, and where the
chapter defines it. Encoder, decoder, description and the Rust table all derive from these rows.

Positions count from the packet's first byte; bit 0 is the least significant; a field that spans
bytes is little endian.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

_GPR_ITEMS = (
    *("R/EFLAGS", "R/EIP", "R/EAX", "R/ECX", "R/EDX", "R/EBX", "R/ESP", "R/EBP", "R/ESI", "R/EDI"),
    *(f"R{number}" for number in range(8, 16)),
)
_BASIC_ITEMS = ("Instruction Pointer", "Applicable Counters", "Timestamp")
_MEMORY_ITEMS = ("MemAccessAddress", "MemAuxInfo", "MemAccessLatency", "TSXAuxInfo")
_XMM_ITEMS = tuple(f"XMM{number // 2}_Q{number % 2}" for number in range(32))
_ITEMS_BY_BLOCK_TYPE = {0x01: _GPR_ITEMS, 0x04: _BASIC_ITEMS, 0x05: _MEMORY_ITEMS, 0x10: _XMM_ITEMS}
_LBR_ITEM_PARTS = ("FROM_IP", "TO_IP", "INFO")


def item_name(block_type: int, item_id: int) -> str | None:
    """Return the name of item `item_id` (0..31) of a block type (BBP.Type); None if reserved.

    The LBR blocks number 96 items in a row, three to an entry, from the top of the stack down.
    """
    if not 0 <= item_id < 32:
        return None
    if 0x08 <= block_type <= 0x0A:
        entry, part = divmod(32 * (block_type - 0x08) + item_id, 3)
        return f"LBR[TOS-{entry}]_{_LBR_ITEM_PARTS[part]}"
    names = _ITEMS_BY_BLOCK_TYPE.get(block_type, ())
    return names[item_id] if item_id < len(names) else None


ESCAPE = 0x02
"""First byte of all packets with an extended opcode; the second byte distinguishes them."""

CYC_MAX_BYTES = 9
"""The longest CYC that is read or written: 61 bits of cycles (the chapter sets no limit)."""


class PayloadCoding(Enum):
    """How the bytes after the header are laid out."""

    FIELDS = auto()  # fields at fixed places
    TNT = auto()  # a stop bit, then one bit a branch, oldest first
    CYC = auto()  # 5 bits, then 7 bits a byte while Exp is set


@dataclass(frozen=True, slots=True)
class Field:
    """Bits of a packet that carry a value.

    The value is the `width` bits from bit `bit` of byte `byte` on, shifted left by `shift`. Width
    0 stands for the bytes from `byte` to the end of the packet, counted by the row's
    `VariablePayload`.
    """

    name: str
    byte: int
    bit: int
    width: int
    shift: int = 0
    hexadecimal: bool = True
    values: Mapping[int, str] | None = None
    context: bool = False  # not in the packet: known from the BBP before it


@dataclass(frozen=True, slots=True)
class VariablePayload:
    """A length that depends on a field: value to bytes; values that are not there are reserved."""

    selector: str
    sizes: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class UndefinedHeader:
    """A combination of header bits that the chapter leaves undefined: `byte & mask == value`."""

    fields: tuple[str, ...]
    byte: int
    mask: int
    value: int


@dataclass(frozen=True, slots=True)
class PacketDeclaration:
    """One packet.

    `header` and `mask` have the same length: a byte b at i belongs to the packet iff `b & mask[i]
    == header[i]`. `size` is the number of bytes without the payload that `payload` describes.
    `enables` are the conditions under which a processor sends it. `only_in_block`: its bytes are
    another packet outside a block. `defined`: the chapter has it.
    """

    name: str
    header: bytes
    mask: bytes
    size: int
    table: str
    section: str
    enables: str
    fields: tuple[Field, ...] = ()
    coding: PayloadCoding = PayloadCoding.FIELDS
    payload: VariablePayload | None = None
    invalid: tuple[UndefinedHeader, ...] = ()
    only_in_block: bool = False
    defined: bool = True

    @property
    def has_escaped_opcode(self) -> bool:
        """True if the packet's opcode is its second byte."""
        return self.header[0] == ESCAPE

    @property
    def in_block(self) -> bool:
        """True if the packet may come between BBP and BEP (Table 33-15)."""
        return self.name not in FORBIDDEN_IN_BLOCK


FORBIDDEN_IN_BLOCK = frozenset(
    {
        "TNT",
        "TNT.64",
        "TIP",
        "TIP.PGE",
        "TIP.PGD",
        "MODE.Exec",
        "MODE.TSX",
        "PIP",
        "VMCS",
        "TraceStop",
        "PSB",
        "PSBEND",
        "PTW",
        "MWAIT",
    }
)
"""Packets that never come between BBP and BEP (Table 33-15)."""

IP_PAYLOAD = VariablePayload("ip_bytes", {0: 0, 1: 2, 2: 4, 3: 6, 4: 6, 6: 8})

BLOCK_TYPES = {
    0x01: "GPR",
    0x04: "PEBS_BASIC",
    0x05: "PEBS_MEMORY",
    0x08: "LBR_0",
    0x09: "LBR_1",
    0x0A: "LBR_2",
    0x10: "XMM",
}
"""BBP.Type (Table 33-45); all other values are reserved."""

CFE_TYPES = {
    0x1: "INTR",
    0x2: "IRET",
    0x3: "SMI",
    0x4: "RSM",
    0x5: "SIPI",
    0x6: "INIT",
    0x7: "VMENTRY",
    0x8: "VMEXIT",
    0x9: "VMEXIT_INTR",
    0xA: "SHUTDOWN",
    0xC: "UINTR",
    0xD: "UIRET",
    0xE: "SWINTR",
    0xF: "SYSCALL",
}
"""CFE.Type (Table 33-50), and with FRED, which is later than the chapter, software interrupts (0EH)
and SYSCALL or SYSENTER (0FH); all other values are reserved.
"""

EVD_TYPES = {0: "PFA", 1: "VMXQ", 2: "VMXR"}
"""EVD.Type (Table 33-51); all other values are reserved."""

WAKE_REASONS = {1: "interrupt", 2: "timer_deadline", 4: "store", 8: "hardware"}
"""PWRX wake reason, one bit each (Table 33-44)."""


def _fixed_packet(
    name: str, header: str, size: int, where: str, enables: str, *fields: Field
) -> PacketDeclaration:
    table, section = where.split()
    raw = bytes.fromhex(header)
    return PacketDeclaration(name, raw, b"\xff" * len(raw), size, table, section, enables, fields)


def _ip_packet(name: str, opcode: int, where: str, enables: str) -> PacketDeclaration:
    table, section = where.split()
    fields = (Field("ip_bytes", 0, 5, 3, hexadecimal=False), Field("payload", 1, 0, 0))
    return PacketDeclaration(
        name, bytes((opcode,)), b"\x1f", 1, table, section, enables, fields, payload=IP_PAYLOAD
    )


_IP_BIT = Field("ip", 1, 7, 1, hexadecimal=False)

DECLARATIONS: tuple[PacketDeclaration, ...] = (
    _fixed_packet("PAD", "00", 1, "33-39 33.4.2.20", "TriggerEn"),
    PacketDeclaration(
        "TNT",
        b"\x00",
        b"\x01",
        1,
        "33-16",
        "33.4.2.1",
        "PacketEn & ~DisTNT",
        (Field("bits", 0, 1, 7),),
        coding=PayloadCoding.TNT,
    ),
    # The chapter calls both forms TNT; the suffix is the packet's size in bits.
    PacketDeclaration(
        "TNT.64",
        b"\x02\xa3",
        b"\xff\xff",
        8,
        "33-16",
        "33.4.2.1",
        "PacketEn & ~DisTNT",
        (Field("bits", 2, 0, 48),),
        coding=PayloadCoding.TNT,
    ),
    _ip_packet("TIP", 0x0D, "33-17 33.4.2.2", "PacketEn"),
    _ip_packet("TIP.PGE", 0x11, "33-20 33.4.2.4", "PacketEn 0->1"),
    _ip_packet("TIP.PGD", 0x01, "33-21 33.4.2.5", "PacketEn 1->0"),
    _ip_packet("FUP", 0x1D, "33-22 33.4.2.6", "TriggerEn & ContextEn"),
    _fixed_packet(
        "PIP",
        "0243",
        8,
        "33-24 33.4.2.7",
        "TriggerEn & ContextEn & OS",
        Field("nr", 2, 0, 1, hexadecimal=False),
        Field("cr3", 2, 1, 47, shift=5),
    ),
    PacketDeclaration(
        "MODE.Exec",
        b"\x99\x00",
        b"\xff\xe0",
        2,
        "33-26",
        "33.4.2.8",
        "TriggerEn & ContextEn & FilterEn & (BranchEn | EventEn)",
        (
            Field("csl", 1, 0, 1, hexadecimal=False),
            Field("csd", 1, 1, 1, hexadecimal=False),
            Field("iflag", 1, 2, 1, hexadecimal=False),
        ),
        invalid=(UndefinedHeader(("csl", "csd"), 1, 0x03, 0x03),),
    ),
    PacketDeclaration(
        "MODE.TSX",
        b"\x99\x20",
        b"\xff\xe0",
        2,
        "33-27",
        "33.4.2.8",
        "TriggerEn & ContextEn & BranchEn",
        (Field("in_tx", 1, 0, 1, hexadecimal=False), Field("tx_abort", 1, 1, 1, hexadecimal=False)),
        invalid=(UndefinedHeader(("in_tx", "tx_abort"), 1, 0x03, 0x03),),
    ),
    _fixed_packet("TraceStop", "0283", 2, "33-28 33.4.2.9", "TriggerEn & ContextEn"),
    _fixed_packet(
        "CBR", "0203", 4, "33-29 33.4.2.10", "TriggerEn", Field("ratio", 2, 0, 8, hexadecimal=False)
    ),
    _fixed_packet("TSC", "19", 8, "33-30 33.4.2.11", "TSCEn & TriggerEn", Field("tsc", 1, 0, 56)),
    _fixed_packet("MTC", "59", 2, "33-31 33.4.2.12", "MTCEn & TriggerEn", Field("ctc", 1, 0, 8)),
    _fixed_packet(
        "TMA",
        "0273",
        7,
        "33-32 33.4.2.13",
        "MTCEn & TSCEn & TriggerEn",
        Field("ctc", 2, 0, 16),
        Field("fast_counter", 5, 0, 9),
    ),
    PacketDeclaration(
        "CYC",
        b"\x03",
        b"\x03",
        1,
        "33-33",
        "33.4.2.14",
        "CYCEn & TriggerEn",
        (Field("cycles", 0, 3, 5, hexadecimal=False),),
        coding=PayloadCoding.CYC,
    ),
    _fixed_packet(
        "VMCS",
        "02c8",
        7,
        "33-34 33.4.2.15",
        "TriggerEn & ContextEn & VMX operation",
        Field("pointer", 2, 0, 40, shift=12),
    ),
    _fixed_packet("OVF", "02f3", 2, "33-35 33.4.2.16", "TriggerEn"),
    _fixed_packet("PSB", "0282" * 8, 16, "33-36 33.4.2.17", "TriggerEn"),
    _fixed_packet("PSBEND", "0223", 2, "33-37 33.4.2.18", "TriggerEn"),
    _fixed_packet("MNT", "02c388", 11, "33-38 33.4.2.19", "TriggerEn", Field("payload", 3, 0, 64)),
    PacketDeclaration(
        "PTW",
        b"\x02\x12",
        b"\xff\x1f",
        2,
        "33-40",
        "33.4.2.21",
        "TriggerEn & ContextEn & FilterEn & PTWEn",
        (_IP_BIT, Field("payload_bytes", 1, 5, 2, hexadecimal=False), Field("payload", 2, 0, 0)),
        payload=VariablePayload("payload_bytes", {0: 4, 1: 8}),
    ),
    PacketDeclaration(
        "EXSTOP",
        b"\x02\x62",
        b"\xff\x7f",
        2,
        "33-41",
        "33.4.2.22",
        "TriggerEn & PwrEvtEn",
        (_IP_BIT,),
    ),
    _fixed_packet(
        "MWAIT",
        "02c2",
        10,
        "33-42 33.4.2.23",
        "TriggerEn & PwrEvtEn & ContextEn",
        Field("hints", 2, 0, 8),
        Field("ext", 6, 0, 2),
    ),
    _fixed_packet(
        "PWRE",
        "0222",
        4,
        "33-43 33.4.2.24",
        "TriggerEn & PwrEvtEn",
        Field("hw", 2, 7, 1, hexadecimal=False),
        Field("state", 3, 4, 4, hexadecimal=False),
        Field("sub_state", 3, 0, 4, hexadecimal=False),
    ),
    _fixed_packet(
        "PWRX",
        "02a2",
        7,
        "33-44 33.4.2.25",
        "TriggerEn & PwrEvtEn",
        Field("last", 2, 4, 4, hexadecimal=False),
        Field("deepest", 2, 0, 4, hexadecimal=False),
        Field("wake", 3, 0, 4, values=WAKE_REASONS),
    ),
    _fixed_packet(
        "BBP",
        "0263",
        3,
        "33-45 33.4.2.26",
        "TriggerEn",
        Field("sz", 2, 7, 1, hexadecimal=False),
        Field("type", 2, 0, 5, values=BLOCK_TYPES),
    ),
    PacketDeclaration(
        "BIP",
        b"\x04",
        b"\x07",
        1,
        "33-46",
        "33.4.2.27",
        "TriggerEn",
        (
            Field("id", 0, 3, 5),
            Field("sz", 0, 0, 1, hexadecimal=False, context=True),
            Field("payload", 1, 0, 0),
        ),
        payload=VariablePayload("sz", {0: 8, 1: 4}),
        only_in_block=True,
    ),
    PacketDeclaration(
        "BEP", b"\x02\x33", b"\xff\x7f", 2, "33-48", "33.4.2.28", "TriggerEn", (_IP_BIT,)
    ),
    _fixed_packet(
        "CFE",
        "0213",
        4,
        "33-49 33.4.2.29",
        "EventEn & TriggerEn & ContextEn",
        Field("ip", 2, 7, 1, hexadecimal=False),
        Field("type", 2, 0, 5, values=CFE_TYPES),
        Field("vector", 3, 0, 8),
    ),
    _fixed_packet(
        "EVD",
        "0253",
        11,
        "33-51 33.4.2.30",
        "EventEn & TriggerEn & ContextEn",
        Field("type", 2, 0, 6, values=EVD_TYPES),
        Field("payload", 3, 0, 64),
    ),
    # Later than the chapter: a trigger, of processors with trigger tracing. It is read and not
    # written. With `icntv` it has a count of instructions.
    PacketDeclaration(
        "TRIG",
        b"\xd9",
        b"\xff",
        3,
        "-",
        "-",
        "-",
        (
            Field("ip", 1, 7, 1, hexadecimal=False),
            Field("icntv", 1, 6, 1, hexadecimal=False),
            Field("mult", 1, 5, 1, hexadecimal=False),
            Field("trbv", 2, 0, 8),
            Field("icnt", 3, 0, 0, hexadecimal=False),
        ),
        payload=VariablePayload("icntv", {0: 0, 1: 2}),
        defined=False,
    ),
)
"""All packets, in the order of the chapter where it does not hinder reading."""

DECLARATION_BY_NAME: Mapping[str, PacketDeclaration] = MappingProxyType(
    {row.name: row for row in DECLARATIONS}
)
"""Declarations by packet name."""

NAMES: tuple[str, ...] = tuple(row.name for row in DECLARATIONS if row.defined)
"""Names of the packets that can be encoded."""


def _declarations_by_byte(
    rows: list[PacketDeclaration], byte: int
) -> tuple[tuple[PacketDeclaration, ...], ...]:
    """Return, for each value of byte `byte`, the rows with the most specific mask that match it."""
    table = []
    for value in range(256):
        found = [row for row in rows if value & row.mask[byte] == row.header[byte]]
        most = max((row.mask[byte].bit_count() for row in found), default=0)
        table.append(tuple(row for row in found if row.mask[byte].bit_count() == most))
    return tuple(table)


BY_FIRST_BYTE = _declarations_by_byte([row for row in DECLARATIONS if not row.only_in_block], 0)
"""Candidates by first byte; at 02H, the escape, all escaped packets."""

BY_SECOND_BYTE = _declarations_by_byte([row for row in DECLARATIONS if row.has_escaped_opcode], 1)
"""Candidates by the byte after the escape."""

BLOCK_ITEM = DECLARATION_BY_NAME["BIP"]
"""The packet that takes the place of some TNTs between BBP and BEP."""
