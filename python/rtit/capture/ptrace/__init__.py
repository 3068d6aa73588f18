"""The ptrace back end: `tracer.py` steps a program, `recorder.py` drives a trace unit a thread with
what it tells, `session.py` ties them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.capture.ptrace.session import PtraceSession, replay, start_ptrace
    from rtit.capture.ptrace.tracer import PtraceTracer

__all__ = ["PtraceSession", "PtraceTracer", "replay", "start_ptrace"]

__getattr__ = exports(
    __name__,
    {"session": "PtraceSession replay start_ptrace", "tracer": "PtraceTracer"},
)
