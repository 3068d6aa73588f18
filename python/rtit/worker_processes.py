"""Work in processes, with results in a fixed order.

The work on each item runs in a new process that is forked from this one. If that process dies, this
one does the work again. Only a few results wait for an earlier one, so memory is bounded.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

_MAX_DEFAULT = 8
_AHEAD = 2
"""Results that wait for an earlier one, for each process."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_context = multiprocessing.get_context("fork")
Item = TypeVar("Item")
Result = TypeVar("Result")


def default_processes() -> int:
    """Return one process for each CPU that this process may use, at most 8."""
    return min(len(os.sched_getaffinity(0)), _MAX_DEFAULT)


def run_in_processes(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> Iterator[Result]:
    """Iterate over the results of `work` in the order of the items, each from a new process.

    Results are pickled. At most `processes` run at a time. If `work` raises an exception, or its
    process dies, the item is done again in this process, and raises its exception there.
    """
    running: dict[Any, tuple[int, Any]] = {}
    finished: dict[int, Result] = {}
    begun = 0
    try:
        for at in range(len(items)):
            while at not in finished:
                end = min(len(items), at + _AHEAD * processes)
                while len(running) < processes and begun < end:
                    receiver, process = _start_worker(work, items[begun])
                    running[receiver] = begun, process
                    begun += 1
                for ready in wait([*running]):
                    number, process = running.pop(ready)
                    content = _receive(ready)
                    process.join()
                    finished[number] = (
                        pickle.loads(content) if content is not None else work(items[number])
                    )
            yield finished.pop(at)
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _start_worker(work: Callable[[Item], Result], item: Item) -> tuple[Connection, Any]:
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_run_worker, args=(work, item, sender), daemon=True)
    # a signal must not run the handlers of this process in the new one
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    sender.close()
    return receiver, process


def _run_worker(work: Callable[[Item], Result], item: Item, sender: Connection) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    with contextlib.suppress(Exception):  # this process sends nothing, and the other does the work
        sender.send_bytes(pickle.dumps(work(item)))


def _receive(receiver: Any) -> bytes | None:
    """Return what a process sends; None if it died."""
    with receiver:
        try:
            content: bytes = receiver.recv_bytes()
        except (EOFError, OSError):
            return None
    return content
