"""Packets as lines: of the bytes that a unit has made, and of the words of a scenario.

IPs are joined with LastIP here by Table 33-18, independently of the unit, which compresses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rtit.packets import NAMES, BlockContext, Packet, Truncated, decode
from rtit.packets.table import BY_NAME
from rtit.scenario.nodes import Line
from rtit.scenario.words import hint, number

IP_PACKETS = ("TIP", "TIP.PGE", "TIP.PGD", "FUP")
FAULTS = ("#GP", "#UD")
SHUTDOWN = "shutdown"
REST = "..."

MOST_PADDING = 1 << 16
"""PADs of a scenario, made and expected, at most."""

_WIDTHS = {(0, 0): 16, (0, 1): 32, (1, 0): 64}
_RESULTS = frozenset("TN")


@dataclass
class Reader:
    """Turns bytes into lines; `last_ip` is LastIP before the next of them."""

    last_ip: int = 0
    _rest: bytes = b""
    _context: BlockContext = field(default_factory=BlockContext)

    def read(self, data: bytes) -> list[Line]:
        """The packets that end in `data`; of one that does not the rest may come later.

        Raises PacketError.
        """
        whole, offset, lines = self._rest + data, 0, []
        while offset < len(whole):
            try:
                packet = decode(whole, offset, in_block=self._context.item_size)
            except Truncated:
                break
            self._context.update(packet)
            lines.append(self._line(packet))
            offset += packet.size
        self._rest = whole[offset:]
        return lines

    def cut(self) -> None:
        """The stream is over; the rest of a packet does not come any more."""
        self._rest = b""
        self._context = BlockContext()

    def _line(self, packet: Packet) -> Line:
        fields: dict[str, Any] = dict(packet.fields)
        if packet.name == "PSB":
            self.last_ip = 0
        if packet.name == "MODE.Exec":
            bits = fields["csl"], fields["csd"]
            flag: tuple[str, ...] = ("IF",) if fields["iflag"] else ()
            return Line(packet.name, (_WIDTHS.get(bits, 0), *flag))
        if packet.name in IP_PACKETS:
            if fields["ip_bytes"] == 0:
                return Line(packet.name)
            self.last_ip = self._ip(fields["ip_bytes"], fields["payload"])
            return Line(packet.name, (self.last_ip,))
        return Line(packet.name, tuple(fields.values()))

    def _ip(self, ip_bytes: int, payload: int) -> int:
        if ip_bytes == 3:
            return payload | (0xFFFF << 48 if payload >> 47 else 0)
        kept = {1: 16, 2: 32, 4: 48, 6: 64}[ip_bytes]
        return self.last_ip >> kept << kept | payload


def show(line: Line) -> str:
    """A line as a scenario has it."""
    return " ".join([line.name, *map(_word, _hexadecimal(line), line.values)])


def _word(as_hexadecimal: bool, value: int | str) -> str:
    return f"{value:#x}" if as_hexadecimal and isinstance(value, int) else str(value)


def _hexadecimal(line: Line) -> list[bool]:
    if line.name in IP_PACKETS:
        return [True]
    if line.name == "MODE.Exec" or line.name not in BY_NAME:
        return [False] * len(line.values)
    return [field.hexadecimal and field.width > 8 for field in BY_NAME[line.name].fields]


def hexadecimal_bytes(text: str) -> bytes:
    """Bytes as `04 2d 08 13`. ValueError if they are none."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"{text.strip()[:40]!r} are no hexadecimal bytes") from None


def packet_lines(text: str) -> list[Line]:
    """What an indented line of a scenario stands for, but for `...` and exact bytes.

    Many for `PAD * 222`. ValueError if it is none.
    """
    words = text.split()
    if words[:2] != ["PAD", "*"]:
        return [_line_of(words)]
    if len(words) != 3 or not 0 < number(words[2]) <= MOST_PADDING:
        raise ValueError(f"write PAD * N, with N from 1 to {MOST_PADDING}: {text.strip()[:40]!r}")
    return [Line("PAD")] * number(words[2])


def _line_of(text: list[str]) -> Line:
    name, *words = text
    if name in (*FAULTS, SHUTDOWN):
        if words:
            raise ValueError(f"{name} has no fields, not {words[0]!r}")
        return Line(name)
    if name not in NAMES:
        raise ValueError(f"there is no packet {name[:40]!r}{hint(name, (*NAMES, SHUTDOWN))}")
    if name == "MODE.Exec":
        return _mode(words)
    wanted = [field.name for field in BY_NAME[name].fields]
    if name in IP_PACKETS:
        if len(words) > 1:
            raise ValueError(f"{name} has one address or none, not {len(words)} words")
        return Line(name, tuple(map(number, words)))
    if len(words) != len(wanted):
        listed = f": {', '.join(wanted)}" if wanted else ""
        raise ValueError(f"{name} has {len(wanted)} fields{listed}; {len(words)} are given")
    return Line(name, tuple(map(_value, wanted, words)))


def _mode(words: list[str]) -> Line:
    if words[:1] not in [[str(width)] for width in _WIDTHS.values()] or words[1:] not in (
        [],
        ["IF"],
    ):
        raise ValueError(f"MODE.Exec has 16, 32 or 64, and IF or nothing: {' '.join(words)[:40]!r}")
    return Line("MODE.Exec", (int(words[0]), *words[1:]))


def _value(name: str, word: str) -> int | str:
    if name != "bits":
        return number(word)
    if not set(word) <= _RESULTS:
        raise ValueError(f"the results of a TNT are T and N: {word[:40]!r}")
    return word
