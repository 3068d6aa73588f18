"""Signals that end a verb: what it made for itself goes, what it has said is there, and it dies of
the signal.
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

from rtit.cli import out

_TIDY = (signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """Signal `number` came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Ended, unless they are ignored or taken, and SIGINT what it always
    does; more of them change nothing until `die`: they must not come into what the first has led
    to. A reader of standard output that has gone raises BrokenPipeError, and ends us quietly
    afterwards.
    """

    def end(number: int, _: FrameType | None) -> None:
        _take(ours, _late)
        raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)

    default = dict.fromkeys(_TIDY, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    ours = {each: was for each, was in default.items() if signal.getsignal(each) == was}
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _take(ours, end)
    try:
        yield
    except (KeyboardInterrupt, Ended):
        raise  # nothing is heard until `die`
    except BrokenPipeError:
        _take(ours, _late)
        raise
    except BaseException:
        _as_before(ours)
        raise
    else:
        _as_before(ours)


def _late(number: int, _: FrameType | None) -> None:
    """A signal behind another."""


def _take(
    signals: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> None:
    for each in signals:
        signal.signal(each, handler)


def _as_before(ours: Mapping[signal.Signals, Any]) -> None:
    for each, was in {**ours, signal.SIGPIPE: signal.SIG_DFL}.items():
        signal.signal(each, was)


def die(number: int) -> int:
    """End by the signal after all that is to be done at the end; its exit code if it is blocked."""
    atexit._run_exitfuncs()  # a signal ends the interpreter without them
    for each in {number, signal.SIGINT, *_TIDY}:
        # What is left to say may be waited for: whoever sends another one does not.
        if each == number or signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, signal.SIG_DFL)
    if number == signal.SIGINT:
        out.line(to=sys.stderr)  # behind the ^C of the terminal
    if number != signal.SIGPIPE:
        _say_the_rest()
    os.kill(os.getpid(), number)
    return 128 + number


def _say_the_rest() -> None:
    """What is left goes where it is taken at once: nobody waits for a reader that has stopped."""
    with contextlib.suppress(OSError, ValueError):
        ready = select.poll()
        ready.register(sys.stdout.fileno(), select.POLLOUT)
        if any(event & select.POLLOUT for _, event in ready.poll(0)):
            sys.stdout.flush()
