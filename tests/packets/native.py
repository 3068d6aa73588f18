"""Results of the Rust scanner in the form of the Python scanner."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from rtit.packets import Packet


def first(data: bytes, block: int | None = None) -> tuple[str, dict[str, Any]] | str | None:
    """Return name and fields of the first packet, "truncated", or None for bytes that are no
    packet.

    `block`: bytes of the items of an open block. Skips the test if the native module is not built.
    """
    try:
        core: Any = import_module("rtit._core")
    except ImportError:
        pytest.skip("the native module is not built")
    found, _, _, error = core.scan_packets(data, 0, 1, block or 0)
    if found:
        name, fields = found[0][2:]
        return name, fields
    return "truncated" if error[2] else None


def said(packet: Packet) -> tuple[str, dict[str, Any]]:
    """Return a packet in the form of `first`."""
    return packet.name, dict(packet.fields)
