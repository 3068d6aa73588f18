"""The perf back end: real PT, by the kernel and `perf record`. `find.py` says whether this machine
can, and why not; `session.py` starts perf and waits for it.

It was tried with a stand-in for perf and for the kernel's files alone, not yet on PT hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.capture.perf.find import Found, find_perf
    from rtit.capture.perf.session import PerfSession, start_perf

__all__ = ["Found", "PerfSession", "find_perf", "start_perf"]

__getattr__ = exports(__name__, {"find": "Found find_perf", "session": "PerfSession start_perf"})
