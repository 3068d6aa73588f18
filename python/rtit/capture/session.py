"""A recording under way: the program on one side, the perf.data file on the other."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rtit.capture.recording import Recording, RecordingTotals, exit_code_of
from rtit.errors import RecordError

if TYPE_CHECKING:
    from rtit.capture.request import RecordPlan
    from rtit.perfdata import ExitStatus


class RecordingSink(Protocol):
    """What takes what a back end has: a `Keeper`, or what counts. It is the session's to ask."""

    totals: RecordingTotals
    ending: ExitStatus | None

    @property
    def full(self) -> bool:
        """Nothing more is written."""

    @property
    def pt_bytes(self) -> int:
        """Bytes of PT in the file."""

    @property
    def facts(self) -> dict[str, str]:
        """What the file says of how much of the trace it has."""


class RecordingSession(ABC):
    """Drives one recording: a context manager; `step` until it returns False, then `finish`.

    Leaving the context early kills the program, or lets go of it if it was attached to, and keeps
    what was recorded; in a process that was forked meanwhile nothing happens.
    """

    def __init__(self, plan: RecordPlan) -> None:
        self._owner = os.getpid()
        self._plan = plan

    @property
    @abstractmethod
    def totals(self) -> RecordingTotals:
        """What has been recorded so far."""

    @property
    def stopped(self) -> str | None:
        """Where the recording stopped, if the program goes on without it."""
        return None

    @abstractmethod
    def step(self, timeout: float) -> bool:
        """Take what there is, waiting `timeout` seconds at most. False when everything has
        ended.
        """

    @abstractmethod
    def snapshot(self) -> None:
        """Write the last packets of every thread, of a recording that keeps those alone."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to the program."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the program and everything it started, or let go of what was attached to.

        `step` then comes to its end.
        """

    @abstractmethod
    def finish(self) -> Recording:
        """Close the file and say what is in it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._owner:
            return  # forked meanwhile: the recording is the other's, which goes on
        if kind is None:
            self._close()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Kill the program, or let go of it, and close the file; errors are suppressed:
        there is an error already.
        """
        self.kill()
        with contextlib.suppress(RecordError, OSError):
            while self.step(timeout=1.0):
                pass
        with contextlib.suppress(RecordError, OSError):
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """Close the file, and whatever else is open. Again is harmless."""


class TraceUnitSession(RecordingSession):
    """A recording that trace units of our own write; `keeper` has their packets."""

    def __init__(self, plan: RecordPlan, keeper: RecordingSink) -> None:
        super().__init__(plan)
        self._keeper = keeper

    @property
    def totals(self) -> RecordingTotals:
        """What has been recorded so far."""
        return self._keeper.totals

    @property
    def stopped(self) -> str | None:
        """Where the recording stopped, if the program goes on without it."""
        return self._keeper.facts.get("stopped")

    def finish(self) -> Recording:
        """Close the file and say what is in it."""
        self._settle()
        self._close()
        plan, totals = self._plan, self.totals
        cut = plan.size_limits.snapshot is not None or self._keeper.full
        chosen = bool(plan.filters or plan.window)
        return Recording(
            path=plan.path,
            exit_code=0 if plan.request.pids else exit_code_of(totals.status or 0),
            instructions=totals.clock,
            threads=totals.threads,
            pt_bytes=self._keeper.pt_bytes,
            branches=totals.branches,
            partial=chosen or cut,
            traced_instructions=None if cut else totals.traced if chosen else totals.clock,
            traced_branches=None if cut else totals.traced_branches if chosen else totals.branches,
            ending=self._keeper.ending,
            stopped=self.stopped,
            warnings=(*totals.warnings, *plan.window.missed(totals.edges)),
        )

    @abstractmethod
    def _settle(self) -> None:
        """Bring `totals.status` and `totals.edges` up to date: the program has ended."""
