"""Recording: back ends that make a real program drive trace units, and what they write.

`request.py` is what a recording is asked for, `session.py` a recording under way. `qemu/` and
`ptrace/` are the back ends, `store/` what becomes of the packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.capture.backends import choose, record, start
    from rtit.capture.clocks import time_model
    from rtit.capture.recording import Recording
    from rtit.capture.request import Request
    from rtit.capture.session import Session
    from rtit.capture.store.extent import Extent

__all__ = [
    "Extent",
    "Recording",
    "Request",
    "Session",
    "choose",
    "record",
    "start",
    "time_model",
]

# reading filters, or recording with QEMU, must not load the trace unit
__getattr__ = exports(
    __name__,
    {
        "backends": "choose record start",
        "clocks": "time_model",
        "recording": "Recording",
        "request": "Request",
        "session": "Session",
        "store.extent": "Extent",
    },
)
