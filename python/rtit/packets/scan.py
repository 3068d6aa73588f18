"""A stream of packets: block context, bad bytes, the next PSB (sections 33.3.7 and 33.4.1.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rtit.errors import PacketError
from rtit.packets.decode import Data, ItemSize, Truncated, decode
from rtit.packets.encode import encode
from rtit.packets.packet import Packet
from rtit.packets.table import DECLARATION_BY_NAME

if TYPE_CHECKING:
    from typing_extensions import Buffer

PSB = encode("PSB")
_PSB_RUN = len(PSB) + 2
"""Bytes that show whether a PSB is the last of a run."""
_MAX_PSB_RUN_OVERLAP = (PSB[:2], PSB[1:3])
_MARGIN = 64
"""The longest packet, and the PSB after it that may show that the bytes are no packet."""
_ENDS_BLOCK = frozenset({"BEP", "OVF"})


@dataclass(frozen=True, slots=True)
class BadBytes:
    """Bytes of a stream that are no packet.

    offset, length: in bytes. reason: one clause. truncated: True for a packet that the end of the
    data cuts off.
    """

    offset: int
    length: int
    reason: str
    truncated: bool = False


class BlockContext:
    """Tracks whether a stream is between BBP and BEP.

    `item_size` is None outside a block, else the bytes of its items. Feed it every packet, in
    order.
    """

    __slots__ = ("item_size",)

    def __init__(self) -> None:
        self.item_size: ItemSize | None = None

    def track_packet(self, packet: Packet) -> bool:
        """Update after a packet; return False if Table 33-15 forbids it, which ends the block."""
        name = packet.name
        if name == "BBP":
            self.item_size = 4 if packet.fields["sz"] else 8
        elif self.item_size is not None:
            if name in _ENDS_BLOCK:
                self.item_size = None
            elif not DECLARATION_BY_NAME[name].in_block:
                self.item_size = None
                return False
        return True


def iterate_packets(data: Data, start: int = 0) -> Iterator[Packet]:
    """Iterate over packets from byte `start` on, which must be a packet boundary outside a block.

    Ends quietly where the data ends inside a packet. Raises PacketError, once, at bytes that are
    no packet.
    """
    for item in scan(data, start):
        if isinstance(item, Packet):
            yield item
        elif not item.truncated:
            raise PacketError(
                item.reason,
                offset=item.offset,
                value=bytes(data[item.offset : item.offset + 4]).hex(" "),
            )


def scan(data: Data, start: int = 0) -> Iterator[Packet | BadBytes]:
    """Yield packets and bad bytes; after bad bytes the scan continues at the next PSB.

    The sizes and lengths of the items add up to the bytes from `start` to the end.
    """
    context = BlockContext()
    offset = start
    while offset < len(data):
        try:
            packet = _decode_whole_packet(data, offset, context.item_size)
        except Truncated as error:
            yield BadBytes(offset, len(data) - offset, error.message, truncated=True)
            return
        except PacketError as error:
            at = find_psb(data, offset + 1)
            end = len(data) if at is None else at
            yield BadBytes(offset, end - offset, error.message)
            context.item_size = None
            offset = end
            continue
        context.track_packet(packet)
        yield packet
        offset += packet.size


def scan_chunks(
    parts: Iterable[Buffer], skip_packets: Callable[[bytearray, int, int], int] | None = None
) -> Iterator[Packet | BadBytes]:
    """Yield packets and bad bytes like `scan`; the chunks of the stream need not fit in memory.

    `skip_packets` is called at packets outside of blocks with a window of the stream, the offset of
    the packet in the window, and the offset at which the last packet must end. It returns the end
    of the packets that need not be yielded.
    """
    context = BlockContext()
    rest = iter(parts)
    window, base, offset, last = bytearray(), 0, 0, False
    bad: tuple[int, str] | None = (
        None  # bad bytes up to an end that is still unknown: offset, reason
    )
    while True:
        while not last and len(window) - offset < _MARGIN:
            del window[:offset]
            base, offset = base + offset, 0
            part = next(rest, None)
            if part is None:
                last = True
            else:
                window += part
        if bad is not None:
            at = find_psb(window, offset)
            if not last and (at is None or at + _PSB_RUN > len(window)):
                offset = max(offset, len(window) - len(PSB) + 1) if at is None else at
                continue
            offset = len(window) if at is None else at
            yield BadBytes(bad[0], base + offset - bad[0], bad[1])
            bad = None
        elif offset >= len(window):
            return
        if skip_packets is not None and context.item_size is None:
            end = skip_packets(window, offset, len(window) - _MARGIN)
            if end > offset:
                offset = end
                continue
        try:
            packet = _decode_whole_packet(window, offset, context.item_size)
        except Truncated as error:
            if offset < len(window):
                where, size = base + offset, len(window) - offset
                yield BadBytes(where, size, error.message, truncated=True)
            return
        except PacketError as error:
            bad = (base + offset, error.message)
            context.item_size = None
            offset += 1
            continue
        context.track_packet(packet)
        yield replace(packet, offset=base + packet.offset) if base else packet
        offset += packet.size


def _decode_whole_packet(data: Data, offset: int, item_size: ItemSize | None) -> Packet:
    """Return the packet at `offset`. Raises as `decode`, and PacketError if a PSB begins within."""
    packet = decode(data, offset, in_block=item_size)
    end = offset + packet.size
    if data[end : end + 2] in _MAX_PSB_RUN_OVERLAP and packet.size > 1 and packet.name != "PSB":
        at = data.find(PSB, offset + 1, end + len(PSB))
        more, pairs = at + len(PSB), 0
        while pairs < len(PSB) // 2 and data[more : more + 2] == PSB[:2]:
            more, pairs = more + 2, pairs + 1
        # a run that goes on with a whole PSB is the packet's bytes and that PSB, unless there is
        # room for another
        if 0 < at < end and (pairs == len(PSB) // 2 or at + 2 * pairs < end):
            raise PacketError("a PSB begins within the packet", offset=offset)
    return packet


def find_psb(data: Data, start: int = 0) -> int | None:
    """Return the offset of the first PSB at or after `start`, None if there is none.

    A payload before a PSB may look like its beginning, so that a run of 02H 82H is longer than 16
    bytes: the PSB is the end of the run.
    """
    at = data.find(PSB, start)
    if at < 0:
        return None
    end = at + len(PSB)
    while data[end : end + 2] == PSB[:2]:
        end += 2
    return end - len(PSB)
