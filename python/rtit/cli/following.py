"""A program that runs: up to its end, and what becomes of signals meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.capture.session import Session


def ending_signals() -> set[signal.Signals]:
    """SIGINT, SIGTERM, and SIGHUP unless it is ignored, as under nohup."""
    signals = {signal.SIGINT, signal.SIGTERM}
    return (
        signals if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else {*signals, signal.SIGHUP}
    )


def follow(
    session: Session,
    wanted: set[signal.Signals],
    *,
    patient: bool,
    update: Callable[[Session], None] = lambda session: None,
) -> bool:
    """Up to the end; `wanted` are blocked, and taken here. Of SIGINT, SIGTERM and SIGHUP the second
    ends it, the first if not `patient`; that goes to the program, if it has not come there by
    itself as Ctrl-C does. SIGUSR2 writes a snapshot. True if one of the first three came.
    """
    asked = 0
    while session.step(timeout=0.1):
        update(session)
        # sigtimedwait tells who sent it
        while (info := signal.sigtimedwait(wanted, 0)) is not None:
            if info.si_signo == signal.SIGUSR2:
                session.snapshot()
                continue
            asked += 1
            if asked > 1 or not patient:
                session.kill()
            elif info.si_code <= 0:
                session.signal(info.si_signo)
    return asked > 0
