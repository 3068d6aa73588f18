"""The ptrace back end: single steps a program and all that it starts, on any x86-64 Linux.

The program is started, or runs already and lives on afterwards (`PtraceTracer.attach`).
It needs no privilege and no hardware; a step costs some 20 microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict

from rtit.capture.program import StrPath, check_arguments, check_environment, native_tracer_module
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit._core import Tracer
    from rtit.capture.record_window import RecordWindow, WindowEdge


_MAX_PROCESSES = 1 << 22
"""Linux has no more (PID_MAX_LIMIT)."""


class TracerStats(TypedDict):
    """How far a program has come."""

    retired: int
    """Instructions of all threads."""
    stops: int
    seconds: float
    """Since the start; after the end, from start to end."""
    processes: int
    """How many exist now."""


def check_processes(pids: Sequence[int]) -> None:
    """Raise what `PtraceTracer.attach` would raise before it stops anything."""
    if len(pids) > _MAX_PROCESSES:
        raise UsageError(f"more than {_MAX_PROCESSES} process numbers")
    for pid in pids:
        if not 0 < pid < 1 << 31:
            raise UsageError(f"no process number: {pid}")
    if not pids:
        raise UsageError("a list of process numbers is needed, not an empty one")
    native_tracer_module().check_processes(list(pids))


class PtraceTracer:
    """A program under the tracer. A context manager: leaving it kills what still runs.

    `argv[0]` is looked up in the PATH of `env` (None: our environment) unless it has a slash. `cwd`
    is the directory to start in. `no_aslr` loads the program where it always is. `truth` names a
    file for what the tracer itself sees; with `cut_at_branches` its runs end at each conditional
    branch, so that a path can be compared that begins there. `pin` keeps the tracer and the program
    on one CPU, which is two to three times as fast; the program does not notice. `blocked` are the
    signals that the program starts with blocked; signals that Python ignores have their default
    action in it. Outside of `window` tracing is off.

    Raises UsageError for arguments that no program can get, RecordError if the program cannot be
    started: `exit_code` 127 not found, 126 not executable, 125 anything else.

    Other threads of this process must not wait for just any child (`os.wait`) meanwhile.
    """

    def __init__(
        self,
        argv: Sequence[StrPath],
        *,
        env: Mapping[str, str] | None = None,
        cwd: StrPath | None = None,
        no_aslr: bool = False,
        truth: StrPath | None = None,
        cut_at_branches: bool = False,
        pin: bool = True,
        blocked: Collection[int] = (),
        window: RecordWindow | None = None,
    ) -> None:
        self._tracer: Tracer = native_tracer_module().Tracer(
            check_arguments(argv),
            env=check_environment(env),
            cwd=cwd,
            no_aslr=no_aslr,
            truth=None if truth is None else Path(truth),
            cut_at_branches=cut_at_branches,
            pin=pin,
            blocked=sorted(blocked),
            start=_edge_row(window.start) if window else None,
            stop=_edge_row(window.stop) if window else None,
        )

    @classmethod
    def attach(
        cls, pids: Sequence[int], *, truth: StrPath | None = None, cut_at_branches: bool = False
    ) -> PtraceTracer:
        """Trace processes that run already, with all their threads and what they start.

        They are let go, not killed, by `kill`, when the context is left, and when this process
        ends in any way. Raises UsageError for numbers that are none of processes, RecordError where
        one of them cannot be attached to; then none is.
        """
        check_processes(pids)
        tracer = cls.__new__(cls)
        tracer._tracer = native_tracer_module().Tracer.attach(
            list(pids),
            truth=None if truth is None else Path(truth),
            cut_at_branches=cut_at_branches,
        )
        return tracer

    @property
    def pid(self) -> int:
        """The first process."""
        return self._tracer.pid

    def next_batch(self, timeout: float = 1.0) -> tuple[bytes, list[bytes]] | None:
        """The events since the last call, as (records, blobs); see `rtit.capture.events`.

        Empty if nothing happens within `timeout` seconds, None after the last event.
        """
        return self._tracer.next_batch(timeout)

    def __iter__(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """The batches until everything has ended; none of them is empty."""
        while (batch := self.next_batch()) is not None:
            if batch[0]:
                yield batch

    def signal(self, number: int) -> None:
        """Send a signal to the first process; nothing happens if it has ended."""
        try:
            self._tracer.signal(number)
        except ProcessLookupError:
            return

    def release(self) -> None:
        """Let the program run on without steps; the events that are left are those of its end."""
        self._tracer.release()

    def kill(self) -> None:
        """Kill the program and everything that it started, or let go of what was attached to.

        The events still come to their end.
        """
        self._tracer.kill()

    def stats(self) -> TracerStats:
        """How far the program has come."""
        stats = self._tracer.stats()
        return TracerStats(
            retired=stats["retired"],
            stops=stats["stops"],
            seconds=stats["seconds"],
            processes=stats["processes"],
        )

    def __enter__(self) -> PtraceTracer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def _edge_row(edge: WindowEdge | None) -> tuple[str | None, int, int, bool] | None:
    return None if edge is None else (edge.path, edge.offset, edge.count, edge.relative)
