"""Packets of gdb's remote protocol ("Overview" of that appendix of gdb's manual): bytes in, packets
out. Nothing in here waits or raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

PACKET = 0x4000
"""Bytes that a packet may have between `$` and `#`."""
_ESCAPE = b"}"
_SPECIAL = {octet: _ESCAPE + bytes([octet ^ 0x20]) for octet in b"#$*}"}


class Noise(Enum):
    """What is no packet."""

    BROKEN = 1  # its checksum is another, or there is none
    TOO_LONG = 2


class Reader:
    """Takes what comes over a connection, in pieces of any size."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes | Noise]:
        """The packets that are whole now, without their frames. What is between packets, as
        acknowledgements are, is passed over. Behind one that is too long nothing can be read.
        """
        self._rest += data
        while True:
            start = self._rest.find(b"$")
            if start < 0:
                self._rest.clear()
                return
            del self._rest[:start]
            end = self._rest.find(b"#", 0, PACKET + 2)
            if end < 0 and len(self._rest) > PACKET + 1:
                self._rest.clear()
                yield Noise.TOO_LONG
                return
            if end < 0 or len(self._rest) < end + 3:
                return
            packet, told = bytes(self._rest[1:end]), bytes(self._rest[end + 1 : end + 3])
            del self._rest[: end + 3]
            yield packet if told.lower() == b"%02x" % _sum(packet) else Noise.BROKEN


def framed(payload: bytes) -> bytes:
    """A packet with this payload, in which what the frame is made of is escaped."""
    return b"$%b#%02x" % (payload, _sum(payload))


def escaped(data: bytes) -> bytes:
    """Bytes as a payload can hold them: up to twice as many."""
    if not any(octet in data for octet in _SPECIAL):
        return data
    return b"".join(_SPECIAL.get(octet, bytes([octet])) for octet in data)


def said(text: bytes) -> bytes:
    """A text for people as a payload can hold it: gdb shows it as it is."""
    return bytes(ord("?") if octet in _SPECIAL else octet for octet in text)


def _sum(payload: bytes) -> int:
    return sum(payload) & 0xFF
