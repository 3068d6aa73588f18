"""A recording in progress, its running totals and its result, for every back end."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rtit.errors import RecordError

if TYPE_CHECKING:
    from rtit.capture.request import RecordPlan
    from rtit.perfdata import ExitStatus
    from rtit.trace import Trace


STOPPED_BY_FULL_DISK = "before the disk was full"
"""`Recording.stopped` of a recording that would have filled the disk."""

COMPRESS_AFTER_PSB = False
"""The trace units' choice of whether an IP after a PSB is compressed against the last IP before it.

False, because perf (6.1) decodes such IPs wrongly while it follows the program."""


@dataclass(slots=True)
class RecordingTotals:
    """Counts of a recording so far.

    `clock`: retired instructions of all threads, traced or not; `branches`: conditional and
    indirect branches, returns and far transfers; `pt_bytes`: bytes that the trace units wrote. A
    snapshot, or a file with a maximum size, has fewer.
    """

    clock: int = 0
    threads: int = 0
    pt_bytes: int = 0
    branches: int = 0
    wait_status: int | None = None
    killed: bool = False
    warnings: list[str] = field(default_factory=list)
    window_edges_passed: int = 0
    """How many edges of the recording window were passed."""
    traced_instructions: int = 0
    """Instructions that retired with PacketEn=1; counted only with filters or a window."""
    traced_branches: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """The result of a recording.

    * `exit_code`: the program's exit code (128 + N if signal N ended it); 0 for attached processes.
    * `ending`: how the program ended: the signal, and the faulting instruction and address if they
      are known.
    * `instructions`, `branches`: executed by the program, traced or not.
    * `partial`: filters, a window, a maximum size or a snapshot left a part untraced.
    * `traced_instructions`, `traced_branches`: what decoding returns; None with a maximum size or a
      snapshot, where the count is unknown.
    * `pt_bytes`: PT in the file, padded to multiples of 8 bytes as in perf.data.
    * `stopped`: why the recording stopped before the program ended.
    * `counted`: False if hardware recorded: instructions, branches and threads are then 0.
    """

    path: Path
    exit_code: int
    instructions: int
    threads: int
    pt_bytes: int
    warnings: tuple[str, ...]
    branches: int = 0
    stopped: str | None = None
    ending: ExitStatus | None = None
    partial: bool = False
    traced_instructions: int | None = None
    traced_branches: int | None = None
    counted: bool = True

    def trace(self) -> Trace:
        """Return the recording, opened for reading. Raises as `rtit.Trace`."""
        from rtit.trace import Trace

        return Trace(self.path)


def exit_code_from_status(wait_status: int) -> int:
    """Return the exit code for a wait status: 128 + N for signal N."""
    return (
        os.waitstatus_to_exitcode(wait_status)
        if not os.WIFSIGNALED(wait_status)
        else 128 + os.WTERMSIG(wait_status)
    )


class RecordingSink(Protocol):
    """Receives the events or messages of a back end, and writes or counts them."""

    totals: RecordingTotals
    ending: ExitStatus | None

    @property
    def is_full(self) -> bool:
        """Whether the sink discards everything that follows."""

    @property
    def pt_bytes(self) -> int:
        """Bytes of PT in the file."""

    @property
    def facts(self) -> dict[str, str]:
        """Facts in the file's header that say which part of the trace the file has."""


class RecordingSession(ABC):
    """Drives one recording: call `step` until it returns False, then `finish`.

    A context manager. An early exit kills the program (it detaches from attached processes) and
    keeps the recording so far. In a forked child, leaving the context does nothing.
    """

    def __init__(self, plan: RecordPlan) -> None:
        self._owner = os.getpid()
        self._plan = plan

    @property
    @abstractmethod
    def totals(self) -> RecordingTotals:
        """The totals of the recording so far."""

    @property
    def stopped(self) -> str | None:
        """The reason for which the recording stopped before the program ended; else None."""
        return None

    @abstractmethod
    def step(self, timeout: float) -> bool:
        """Process the available events; wait for them at most `timeout` seconds.

        Returns False when all processes have ended.
        """

    @abstractmethod
    def snapshot(self) -> None:
        """Write a snapshot, the last packets of every thread, if the recording takes snapshots."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to the program."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the program and everything it started; detach from attached processes.

        Afterwards `step` must be called until it returns False.
        """

    @abstractmethod
    def finish(self) -> Recording:
        """Close the file and return the result."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._owner:
            return  # a forked child: the recording belongs to the parent
        if kind is None:
            self._close()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Kill the program, or detach, and close the file. Errors are suppressed, because this
        follows another error.
        """
        self.kill()
        with contextlib.suppress(RecordError, OSError):
            while self.step(timeout=1.0):
                pass
        with contextlib.suppress(RecordError, OSError):
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """Close the file and all resources. May be called again."""


class TraceUnitSession(RecordingSession):
    """A recording by software trace units; `sink` receives their packets."""

    def __init__(self, plan: RecordPlan, sink: RecordingSink) -> None:
        super().__init__(plan)
        self._sink = sink

    @property
    def totals(self) -> RecordingTotals:
        """The totals of the recording so far."""
        return self._sink.totals

    @property
    def stopped(self) -> str | None:
        """The reason for which the recording stopped before the program ended; else None."""
        return self._sink.facts.get("stopped")

    def finish(self) -> Recording:
        """Close the file and return the result."""
        self._record_end()
        self._close()
        plan, totals = self._plan, self.totals
        truncated = plan.size_limits.snapshot is not None or self._sink.is_full
        selected = bool(plan.filters or plan.window)
        return Recording(
            path=plan.path,
            exit_code=0 if plan.request.pids else exit_code_from_status(totals.wait_status or 0),
            instructions=totals.clock,
            threads=totals.threads,
            pt_bytes=self._sink.pt_bytes,
            branches=totals.branches,
            partial=selected or truncated,
            traced_instructions=None
            if truncated
            else totals.traced_instructions
            if selected
            else totals.clock,
            traced_branches=None
            if truncated
            else totals.traced_branches
            if selected
            else totals.branches,
            ending=self._sink.ending,
            stopped=self.stopped,
            warnings=(
                *totals.warnings,
                *plan.window.describe_missed_edges(totals.window_edges_passed),
            ),
        )

    @abstractmethod
    def _record_end(self) -> None:
        """Update `totals.wait_status` and `totals.window_edges_passed` after the program's end."""
