"""Signals that end a command: it removes its temporary files, writes what it has printed, and dies
of the signal.
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
from typing import Any

from rtit.cli import output

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
        _install(ours, _ignore_later)
        raise KeyboardInterrupt if number == signal.SIGINT else EndedBySignal(number)

    default = dict.fromkeys(_CLEAN_UP, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    ours = {each: was for each, was in default.items() if signal.getsignal(each) == was}
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _install(ours, end)
    try:
        yield
    except (KeyboardInterrupt, EndedBySignal):
        raise  # later signals stay without effect until `exit_by_signal`
    except BrokenPipeError:
        _install(ours, _ignore_later)
        raise
    except BaseException:
        _restore(ours)
        raise
    else:
        _restore(ours)


def _ignore_later(number: int, _: FrameType | None) -> None:
    """Take a signal that comes after another."""


def _install(
    signals: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> None:
    for each in signals:
        signal.signal(each, handler)


def _restore(ours: Mapping[signal.Signals, Any]) -> None:
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
