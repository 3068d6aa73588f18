"""Damage to a stream, and the part of the path that must still be decoded."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from rtit.packets import PSB, Packet, encode, find_psb, scan

NEAR = frozenset(("PSB", "OVF", "CYC", "PSBEND", "FUP", "MODE.Exec"))
"""Packets at which damage has the largest effect."""


@dataclass(frozen=True)
class Damaged:
    """A damaged stream. `before`: unchanged bytes at the start, in whole packets; `after`:
    unchanged bytes at the end, which begin with a PSB; 0 if there is none.
    """

    stream: bytes
    before: int
    after: int
    how: str


def damage_stream(stream: bytes, random: Random) -> Damaged:
    """Damage the stream once, half of the time next to a packet of `NEAR`."""
    found = [each for each in scan(stream) if isinstance(each, Packet)]
    near = [each for each in found if each.name in NEAR]
    packet = random.choice(random.choice((found, near)) or found)
    at = random.choice((packet.offset, packet.offset + random.randrange(packet.size)))
    size = random.choice((1, 1, 2, 3, 8, 30, 300))
    end = min(len(stream), at + size)
    how = random.choice(("flip", "drop", "insert", "double", "cut", "to a PSB", "overwrite"))
    part, rest = b"", stream[end:]
    match how:
        case "flip":
            part, rest = bytes((stream[at] ^ 1 << random.randrange(8),)), stream[at + 1 :]
        case "insert":
            bits = random.choice((random.randbytes(size), encode("OVF"), PSB[: size % 16 + 1]))
            part, rest = bits, stream[at:]
        case "double":
            part, rest = stream[at:end], stream[at:]
        case "cut":
            rest = b""
        case "to a PSB":
            psb = find_psb(stream, at + 1)
            rest = b"" if psb is None else stream[psb:]
        case "overwrite":
            part = random.randbytes(end - at)
    psb = find_psb(rest)
    whole = max((each.offset for each in found if each.offset <= at), default=0)
    after = 0 if psb is None else len(rest) - psb
    return Damaged(stream[:at] + part + rest, whole, after, how)
