"""Waits for a program that rtit runs, and forwards signals to it."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.capture.session import RecordingSession


def add_qemu_env(group: argparse._ActionsContainer) -> None:
    """Declare --qemu-env."""
    group.add_argument(
        "--qemu-env",
        action="append",
        default=[],
        metavar="QEMU_NAME[=VALUE]",
        help="Set a variable for QEMU itself, such as QEMU_CPU=Haswell (without VALUE: as it is "
        "set here); may be repeated. QEMU reads no other QEMU_* variable; the program sees those "
        "that are set here",
    )


def ending_signals() -> set[signal.Signals]:
    """Return SIGINT, SIGTERM, and SIGHUP unless it is ignored, as under nohup."""
    signals = {signal.SIGINT, signal.SIGTERM}
    return (
        signals if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else {*signals, signal.SIGHUP}
    )


def wait_for_program(
    session: RecordingSession,
    signals: set[signal.Signals],
    *,
    patient: bool,
    update: Callable[[RecordingSession], None] = lambda session: None,
) -> bool:
    """Run the session to its end; return whether SIGINT, SIGTERM or SIGHUP came.

    `signals` are blocked and taken here. The second of the three ends the session, or the first
    unless `patient`. The first is forwarded to the program, except for a Ctrl-C, which the
    terminal sends to the program itself. SIGUSR2 writes a snapshot.
    """
    received = 0
    while session.step(timeout=0.1):
        update(session)
        # sigtimedwait returns who sent the signal
        while (info := signal.sigtimedwait(signals, 0)) is not None:
            if info.si_signo == signal.SIGUSR2:
                session.snapshot()
                continue
            received += 1
            if received > 1 or not patient:
                session.kill()
            elif info.si_code <= 0:
                session.signal(info.si_signo)
    return received > 0
