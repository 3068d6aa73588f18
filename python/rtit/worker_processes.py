"""Work on many items in other processes, with results in the order of the items.

The processes are forked from this one (`run_in_processes`), or are the workers of a Dask cluster
(`run_on_cluster`). If a process dies, another one does its work again. Only a few results wait for
an earlier one, so memory is bounded.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.errors import RtitError, UnsupportedError, UsageError, WorkerDiedError

if TYPE_CHECKING:
    from distributed import Client, Future

_MAX_DEFAULT = 8
_AHEAD = 2
"""Results that wait for an earlier one, for each process."""
_MAX_DEATHS = 3
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MIN_AHEAD_ON_CLUSTER = 16
"""Items that are submitted at least: a cluster may start its first worker because of them."""
_CONNECT_SECONDS = 10
_context = multiprocessing.get_context("fork")
Item = TypeVar("Item")
Result = TypeVar("Result")


def default_processes() -> int:
    """Return one process for each CPU that this process may use, at most 8."""
    return min(len(os.sched_getaffinity(0)), _MAX_DEFAULT)


def run_in_order(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    processes: int,
    client: Client | None = None,
) -> Iterator[Result | WorkerDiedError]:
    """Iterate over the results of `work` in the order of the items.

    Does the work on the cluster of `client`, else in so many processes; 1: in this process. An item
    that kills its process again and again has a WorkerDiedError in place of its result. Raises what
    `work` raises.
    """
    if client is not None:
        return run_on_cluster(work, items, client)
    if processes > 1:
        return run_in_processes(work, items, processes)
    return map(work, items)


def run_in_processes(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> Iterator[Result | WorkerDiedError]:
    """Do the work in `processes` worker processes; yield the results in the order of the items.

    Results are pickled. If the process of an item dies, a new one does the work again. The third
    time, the result is a WorkerDiedError. If `work` raises an exception, the item is done again in
    this process, and raises its exception there.
    """
    workers: dict[Any, Any] = {}
    busy: dict[Any, int] = {}
    finished: dict[int, Result | WorkerDiedError] = {}
    deaths: Counter[int] = Counter()
    waiting: list[int] = []
    begun = 0
    try:
        for at in range(len(items)):
            while at not in finished:
                while len(busy) < processes:
                    if not waiting:
                        if begun == min(len(items), at + _AHEAD * processes):
                            break
                        waiting.append(begun)
                        begun += 1
                    idle = next((each for each in workers if each not in busy), None)
                    if idle is None:
                        idle, process = _start_worker(work, items, [*workers])
                        workers[idle] = process
                    busy[idle] = waiting.pop()
                    with contextlib.suppress(OSError):  # a dead one is found below
                        idle.send(busy[idle])
                ready: Any
                for ready in wait([*busy]):
                    number = busy.pop(ready)
                    try:
                        content = ready.recv_bytes()
                    except (EOFError, OSError):
                        process = workers.pop(ready)
                        ready.close()
                        process.join()
                        deaths[number] += 1
                        if deaths[number] < _MAX_DEATHS:
                            waiting.append(number)
                        else:
                            finished[number] = WorkerDiedError(_describe_death(process.exitcode))
                        continue
                    finished[number] = pickle.loads(content) if content else work(items[number])
            yield finished.pop(at)
    finally:
        for connection, process in workers.items():
            process.kill()
            process.join()
            connection.close()


def _start_worker(
    work: Callable[[Item], Result], items: Sequence[Item], others: Sequence[Connection]
) -> tuple[Connection, Any]:
    ours, its = _context.Pipe()
    arguments = (work, items, its, [*others, ours])
    process = _context.Process(target=_run_worker, args=arguments, daemon=True)
    # a signal must not run the handlers of this process in the new one
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    its.close()
    return ours, process


def _run_worker(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    connection: Connection,
    inherited: Sequence[Connection],
) -> None:
    """Receive the numbers of items and send back results, until the parent process ends."""
    for each in inherited:
        each.close()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    with contextlib.suppress(EOFError, OSError):
        while True:
            item = items[connection.recv()]
            content = b""  # the other process does the work again, and raises the exception
            with contextlib.suppress(Exception):
                content = pickle.dumps(work(item))
            connection.send_bytes(content)


def _describe_death(exit_code: int) -> str:
    how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return f"{_MAX_DEATHS} processes that decoded it ended with {how}"


@contextlib.contextmanager
def connect_to_cluster(address: str) -> Iterator[Client]:
    """Connect to the Dask scheduler at an address such as tcp://host:8786, until the end.

    Raises UnsupportedError without the package distributed, and UsageError if there is no scheduler
    at the address.
    """
    try:
        import distributed
    except ImportError:
        raise UnsupportedError("Dask is not installed: pip install 'rtit[dask]'") from None
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UsageError(f"cannot connect to a Dask scheduler at {address}: {reason}") from None
    with client:
        yield client


def run_on_cluster(
    work: Callable[[Item], Result], items: Sequence[Item], client: Client
) -> Iterator[Result | WorkerDiedError]:
    """Iterate over the results of `work` in the order of the items, each from a task of a cluster.

    `work`, items and results are pickled. If the worker of an item dies, Dask gives the item to
    another worker. If the item kills one worker after the other, the result is a WorkerDiedError.
    Raises what `work` raises, and UnsupportedError if a worker has no rtit, or another version.
    """
    submitted: dict[int, Future[Result]] = {}
    begun = 0
    try:
        for at in range(len(items)):
            ahead = _AHEAD * sum(client.nthreads().values())
            while begun < min(len(items), at + max(ahead, _MIN_AHEAD_ON_CLUSTER)):
                submitted[begun] = _submit_item(client, work, items[begun], begun)
                begun += 1
            future = submitted.pop(at)
            if _killed_its_workers(future):
                # Dask also counts the deaths that other items on the same worker caused.
                for each in submitted.values():
                    each.exception()  # waits for its end
                future = _submit_item(client, work, items[at], at)
            yield _result_of_task(future)
    finally:
        client.cancel([*submitted.values()])


def _submit_item(
    client: Client, work: Callable[[Item], Result], item: Item, number: int
) -> Future[Result]:
    from rtit._core import __version__

    # items that come first have a higher priority, also after the death of a worker
    return client.submit(_run_task, __version__, work, item, pure=False, priority=-number)


def _run_task(version: str, work: Callable[[Item], Result], item: Item) -> Result:
    from rtit._core import __version__

    if version != __version__:
        raise UnsupportedError(f"the workers have rtit {__version__}, and this machine {version}")
    return work(item)


def _killed_its_workers(future: Future[Result]) -> bool:
    from distributed import KilledWorker

    return isinstance(future.exception(), KilledWorker)


def _result_of_task(future: Future[Result]) -> Result | WorkerDiedError:
    from rtit._core import __version__

    error = future.exception()
    if error is None:
        result: Result = future.result()
        return result
    if _killed_its_workers(future):
        return WorkerDiedError("the workers that decoded it died, one after the other")
    if isinstance(error, CancelledError):
        raise RtitError("the Dask scheduler ended, or the connection to it was lost")
    if _is_without_rtit(error):
        raise UnsupportedError(
            f"the Dask cluster cannot run the work: install rtit {__version__} on scheduler and "
            f"workers ({error})"
        )
    raise error


def _is_without_rtit(error: BaseException) -> bool:
    text = str(error)
    if isinstance(error, ModuleNotFoundError):
        return "'rtit" in text
    return isinstance(error, RuntimeError) and "deserialization of the task graph" in text
