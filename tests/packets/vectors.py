"""The cases of `vectors.txt`, which tests of the Rust scanner use, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from rtit.packets import Packet, decode
from rtit.packets.decode import ItemSize

FILE = Path(__file__).with_name("vectors.txt")
LINE = re.compile(r"([0-9a-f ]+) ([=>!]) (?:(.+) )?; (\S+)")
ITEM_SIZE: dict[int, ItemSize] = {0: 8, 1: 4}
WRITTEN, READ, NO_PACKET = "=", ">", "!"


class Vector(NamedTuple):
    """A line: bytes, their relation to the packet, the packet in text form, and its source."""

    raw: bytes
    relation: str
    line: str
    source: str

    @property
    def name(self) -> str:
        """The packet's name."""
        return self.line.split()[0]

    @property
    def fields(self) -> dict[str, Any]:
        """The packet's fields, by name."""
        values: dict[str, Any] = dict(map(_value, self.line.split()[1:]))
        if values.get("icntv") == 0:
            values["icnt"] = None
        return values | {"payload": None} if values.get("ip_bytes") == 0 else values

    def decode(self, data: bytes, offset: int) -> Packet:
        """Decode the bytes; a block item within a block of its size."""
        in_block = ITEM_SIZE[self.fields["sz"]] if self.name == "BIP" else None
        return decode(data, offset, in_block=in_block)


def _value(text: str) -> tuple[str, int | str]:
    name, _, value = text.partition("=")
    return name, value if name == "bits" else int(value.partition("(")[0], 0)


def vectors(*relations: str) -> list[Vector]:
    """Return the lines with these relations, in the order of the file."""
    lines = [line for line in FILE.read_text().splitlines() if line and line[0] != "#"]
    found = []
    for line in lines:
        match = LINE.fullmatch(line)
        assert match, line
        raw, *rest = match.groups(default="")
        found.append(Vector(bytes.fromhex(raw), *rest))
    return [vector for vector in found if vector.relation in relations]
