"""Signals that end a command, and signals for a program that rtit runs.

A command that a signal ends removes its temporary files, flushes its output, and dies of the
signal. A command that runs a program forwards the first signal to it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from rtit.cli import output

if TYPE_CHECKING:
    from rtit.capture.session import RecordingSession

_CLEAN_UP = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(BaseException):
    """Signal `number` came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Raise EndedBySignal for SIGTERM and SIGHUP, unless they are ignored or handled elsewhere.

    SIGINT raises KeyboardInterrupt as always. Later signals have no effect until `exit_by_signal`:
    they must not interrupt the clean-up. A closed standard output raises BrokenPipeError.
    """

    def end(number: int, _: FrameType | None) -> None:
        _install_handler(ours, _ignore_repeated_signal)
        raise KeyboardInterrupt if number == signal.SIGINT else EndedBySignal(number)

    default = dict.fromkeys(_CLEAN_UP, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    ours = {each: was for each, was in default.items() if signal.getsignal(each) == was}
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _install_handler(ours, end)
    try:
        yield
    except (KeyboardInterrupt, EndedBySignal):
        raise  # later signals stay without effect until `exit_by_signal`
    except BrokenPipeError:
        _install_handler(ours, _ignore_repeated_signal)
        raise
    except BaseException:
        _restore_handlers(ours)
        raise
    else:
        _restore_handlers(ours)


def _ignore_repeated_signal(number: int, _: FrameType | None) -> None:
    """Ignore a signal after the first."""


def _install_handler(
    signals: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> None:
    for each in signals:
        signal.signal(each, handler)


def _restore_handlers(ours: Mapping[signal.Signals, Any]) -> None:
    for each, was in {**ours, signal.SIGPIPE: signal.SIG_DFL}.items():
        signal.signal(each, was)


def exit_by_signal(number: int) -> int:
    """Run the exit functions, then die of the signal; return the exit code if it is blocked."""
    atexit._run_exitfuncs()  # the interpreter does not run them when a signal ends it
    for each in {number, signal.SIGINT, *_CLEAN_UP}:
        # Flushing may block: another signal then ends the process at once.
        if each == number or signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, signal.SIG_DFL)
    if number == signal.SIGINT:
        output.print_line(to=sys.stderr)  # after the terminal's ^C
    if number != signal.SIGPIPE:
        _flush_without_waiting()
    os.kill(os.getpid(), number)
    return 128 + number


def _flush_without_waiting() -> None:
    """Write buffered output unless its reader has stopped reading."""
    with contextlib.suppress(OSError, ValueError):
        ready = select.poll()
        ready.register(sys.stdout.fileno(), select.POLLOUT)
        if any(event & select.POLLOUT for _, event in ready.poll(0)):
            sys.stdout.flush()


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
    forward_first: bool,
    update: Callable[[RecordingSession], None] = lambda session: None,
) -> bool:
    """Run the session to its end; return whether SIGINT, SIGTERM or SIGHUP came.

    `signals` are blocked; this function handles them. The second of the three ends the session, or
    the first unless `forward_first`. The first is forwarded to the program, except for a Ctrl-C,
    which the terminal sends to the program itself. SIGUSR2 writes a snapshot.
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
            if received > 1 or not forward_first:
                session.kill()
            elif info.si_code <= 0:
                session.signal(info.si_signo)
    return received > 0
