"""Results of the Rust scanner in the form of the Python scanner."""

from __future__ import annotations

from typing import Any

from rtit.packets import Packet, encode
from rtit.trace.tables.packets import packet_batches


def first(data: bytes, block: int | None = None) -> tuple[str, dict[str, Any]] | str | None:
    """Return name and fields of the first packet, "truncated", or None for bytes that are no
    packet.

    `block`: bytes of the items of an open block. Skips the test if the native module is not built.
    """
    start = encode("BBP", sz=int(block == 4), type=4) if block else b""
    batch, index = next(packet_batches(start + data)), int(bool(block))
    if index < len(batch):
        return batch.name(index), batch.packet_fields(index)
    assert batch.bad is not None
    return "truncated" if batch.bad.truncated else None


def said(packet: Packet) -> tuple[str, dict[str, Any]]:
    """Return a packet in the form of `first`."""
    return packet.name, dict(packet.fields)
