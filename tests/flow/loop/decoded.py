"""Decodes the packets of a run."""

from __future__ import annotations

from array import array
from typing import Any

from flow.loop.run import Run
from rtit import _core as core


def space(run: Run) -> Any:
    made = core.Space()
    for address, code in run.sections():
        made.map(0, address, code)
    return made


def decoded(run: Run, stream: bytes, code: Any) -> tuple[list[int], list[Any]]:
    """Return the addresses of all instructions, and the ledger."""
    flow = core.StreamDecoder(stream, code, no_retcomp=bool(run.ctl["DisRETC"]))
    ips = array("Q")
    while (part := flow.instructions(1 << 16)) is not None:
        ips.extend(part["ip"])
    return list(ips), flow.ledger()
