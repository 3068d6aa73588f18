"""What the packets so far tell of the processor: a plain value (sections 33.3.8 and 33.4.2.8)."""

from __future__ import annotations

from typing import NamedTuple


class Told(NamedTuple):
    """A decoder's knowledge. An overflow takes back what the packets that it loses would tell.

    `mode` the low bits of the last MODE.Exec, None if none was since the last PSB, and
    `interrupt_flag` RFLAGS.IF then; `paging` what PIP says: (CR3, non-root operation); `in_tx` and
    `vmcs` likewise. At the beginning of a trace it is what holds then. `trace_stop`: TraceStop.
    """

    mode: int | None = None
    interrupt_flag: bool = False
    paging: tuple[int, bool] = (0, False)
    in_tx: bool = False
    vmcs: int | None = None
    trace_stop: bool = False


NOTHING_TOLD = Told()
"""Before the first trace."""
