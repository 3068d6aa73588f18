"""Back ends that make a real program drive the trace unit, and the recorder behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.capture.backends import choose, record, start
    from rtit.capture.recording import Recording
    from rtit.capture.session import Session, replay

__all__ = ["Recording", "Session", "choose", "record", "replay", "start"]

# reading filters, or recording with QEMU, must not load the trace unit
__getattr__ = exports(
    __name__,
    {
        "backends": "choose record start",
        "recording": "Recording",
        "session": "Session replay",
    },
)
