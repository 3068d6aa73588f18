"""A scenario as data, and packets as lines of text.

A scenario has settings, events, and the packets that each event must give. `PacketLineReader` turns
the bytes of a trace unit into lines; `parse_packet_lines` reads the lines that a scenario expects.
IPs are full addresses in both: the reader joins a payload with LastIP by Table 33-18, without the
code that compresses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rtit.packets import NAMES, BlockContext, Packet, Truncated, decode
from rtit.packets.table import DECLARATION_BY_NAME
from rtit.registers import FULL, Profile
from rtit.scenario.vocabulary import parse_number, suggest_names
from rtit.unit.arch_state import ArchState
from rtit.unit.parameters.table import Parameters
from rtit.unit.time_model import TimeModel


@dataclass(frozen=True, slots=True)
class PacketLine:
    """A packet, or `#GP`, `#UD`, `shutdown`, or `=` with bytes.

    `packet` is the packet, if it was produced rather than expected; comparisons ignore it.
    """

    name: str
    values: tuple[int | str, ...] = ()
    packet: Packet | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ExpectedPackets:
    """Packets that an event must produce: `lines`, then any if `open_end`; or exactly `raw`."""

    lines: tuple[PacketLine, ...] = ()
    open_end: bool = False
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class ScenarioEvent:
    """An event: its name, and its arguments by position and by name. `text` is its line."""

    line: int
    text: str
    name: str
    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    expected: ExpectedPackets = ExpectedPackets()


@dataclass(frozen=True, slots=True)
class ChapterTableRow:
    """A row of a table of the chapter ("33-55", "4"); row "" is the whole table."""

    table: str
    row: str = ""


@dataclass(slots=True)
class Scenario:
    """A scenario file.

    `source` is its name, `remark` the comment at its top; `section`, `rows` and `examples` are its
    references to the chapter, `spec` the requirements that it tests. `time` None is the clock of
    the profile; `ctl` are the fields of IA32_RTIT_CTL that `enable` writes; with `fabric` the bytes
    go to the transport; `code` are bytes of the program that the events execute, by address.
    """

    source: str
    remark: str = ""
    section: str = ""
    rows: tuple[ChapterTableRow, ...] = ()
    examples: tuple[str, ...] = ()
    spec: tuple[str, ...] = ()
    profile: Profile = FULL
    parameters: Parameters = field(default_factory=Parameters)
    time: TimeModel | None = None
    arch: ArchState = field(default_factory=ArchState)
    ctl: Mapping[str, int] = field(default_factory=dict)
    fabric: bool = False
    code: Mapping[int, bytes] = field(default_factory=dict)
    events: list[ScenarioEvent] = field(default_factory=list)


IP_PACKETS = ("TIP", "TIP.PGE", "TIP.PGD", "FUP")
FAULTS = ("#GP", "#UD")
SHUTDOWN = "shutdown"
REST = "..."

MAX_PADS = 1 << 16
"""Most PADs of a scenario, produced and expected."""

_WIDTHS = {(0, 0): 16, (0, 1): 32, (1, 0): 64}
_TNT_RESULTS = frozenset("TN")


@dataclass
class PacketLineReader:
    """Turns bytes into packet lines. `last_ip` is LastIP before the next packet."""

    last_ip: int = 0
    _rest: bytes = b""
    _context: BlockContext = field(default_factory=BlockContext)

    def read_complete_packets(self, data: bytes) -> list[PacketLine]:
        """Return the packets that end in `data`; an incomplete one may end later."""
        whole, offset, lines = self._rest + data, 0, []
        while offset < len(whole):
            try:
                packet = decode(whole, offset, in_block=self._context.item_size)
            except Truncated:
                break
            self._context.track_packet(packet)
            lines.append(self._packet_line(packet))
            offset += packet.size
        self._rest = whole[offset:]
        return lines

    def drop_incomplete_packet(self) -> None:
        """End the stream: drop an incomplete packet."""
        self._rest = b""
        self._context = BlockContext()

    def _packet_line(self, packet: Packet) -> PacketLine:
        fields: dict[str, Any] = dict(packet.fields)
        if packet.name == "PSB":
            self.last_ip = 0
        if packet.name == "MODE.Exec":
            bits = fields["csl"], fields["csd"]
            flag: tuple[str, ...] = ("IF",) if fields["iflag"] else ()
            return PacketLine(packet.name, (_WIDTHS.get(bits, 0), *flag), packet)
        if packet.name in IP_PACKETS:
            if fields["ip_bytes"] == 0:
                return PacketLine(packet.name, (), packet)
            self.last_ip = self._decompress_ip(fields["ip_bytes"], fields["payload"])
            return PacketLine(packet.name, (self.last_ip,), packet)
        return PacketLine(packet.name, tuple(fields.values()), packet)

    def _decompress_ip(self, ip_bytes: int, payload: int) -> int:
        if ip_bytes == 3:
            return payload | (0xFFFF << 48 if payload >> 47 else 0)
        kept = {1: 16, 2: 32, 4: 48, 6: 64}[ip_bytes]
        return self.last_ip >> kept << kept | payload


def format_line(line: PacketLine) -> str:
    """Return a line as a scenario file has it."""
    return " ".join([line.name, *map(_format_value, _hexadecimal_fields(line), line.values)])


def _format_value(as_hexadecimal: bool, value: int | str) -> str:
    return f"{value:#x}" if as_hexadecimal and isinstance(value, int) else str(value)


def _hexadecimal_fields(line: PacketLine) -> list[bool]:
    if line.name in IP_PACKETS:
        return [True]
    if line.name == "MODE.Exec" or line.name not in DECLARATION_BY_NAME:
        return [False] * len(line.values)
    return [
        field.hexadecimal and field.width > 8 for field in DECLARATION_BY_NAME[line.name].fields
    ]


def parse_hexadecimal_bytes(text: str) -> bytes:
    """Parse bytes such as `04 2d 08 13`. Raises ValueError."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"{text.strip()[:40]!r} are no hexadecimal bytes") from None


def parse_packet_lines(text: str) -> list[PacketLine]:
    """Return the packets of an indented line of a scenario."""
    words = text.split()
    if words[:2] != ["PAD", "*"]:
        return [_parse_packet_line(words)]
    if len(words) != 3 or not 0 < parse_number(words[2]) <= MAX_PADS:
        raise ValueError(f"write PAD * N, with N from 1 to {MAX_PADS}: {text.strip()[:40]!r}")
    return [PacketLine("PAD")] * parse_number(words[2])


def _parse_packet_line(text: list[str]) -> PacketLine:
    name, *words = text
    if name in (*FAULTS, SHUTDOWN):
        if words:
            raise ValueError(f"{name} has no fields, not {words[0]!r}")
        return PacketLine(name)
    if name not in NAMES:
        raise ValueError(
            f"there is no packet {name[:40]!r}{suggest_names(name, (*NAMES, SHUTDOWN))}"
        )
    if name == "MODE.Exec":
        return _parse_mode_line(words)
    wanted = [field.name for field in DECLARATION_BY_NAME[name].fields]
    if name in IP_PACKETS:
        if len(words) > 1:
            raise ValueError(f"{name} has one address or none, not {len(words)} words")
        return PacketLine(name, tuple(map(parse_number, words)))
    if len(words) != len(wanted):
        listed = f": {', '.join(wanted)}" if wanted else ""
        raise ValueError(f"{name} has {len(wanted)} fields{listed}; {len(words)} are given")
    return PacketLine(name, tuple(map(_parse_field_value, wanted, words)))


def _parse_mode_line(words: list[str]) -> PacketLine:
    if words[:1] not in [[str(width)] for width in _WIDTHS.values()] or words[1:] not in (
        [],
        ["IF"],
    ):
        raise ValueError(f"MODE.Exec has 16, 32 or 64, and IF or nothing: {' '.join(words)[:40]!r}")
    return PacketLine("MODE.Exec", (int(words[0]), *words[1:]))


def _parse_field_value(name: str, word: str) -> int | str:
    if name != "bits":
        return parse_number(word)
    if not set(word) <= _TNT_RESULTS:
        raise ValueError(f"the results of a TNT are T and N: {word[:40]!r}")
    return word
