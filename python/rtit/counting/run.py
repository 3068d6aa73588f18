"""One run of a program, counted."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rtit.capture.backends import Choice, choose
from rtit.capture.request import Request
from rtit.counting.profile import Counts
from rtit.counting.tally import read
from rtit.profile.stat import Stat, summed
from rtit.profile.stat import stat as decoded

if TYPE_CHECKING:
    from rtit.capture.qemu.counting import CountSession
    from rtit.capture.session import Session


@dataclass(frozen=True, slots=True)
class Counted:
    """A program that has ended, and what it executed.

    `exit_code` is its own, 128 + N if signal N ended it; `backend` what ran it, `qemu` or `ptrace`;
    `warnings` say what may be missing.
    """

    stat: Stat
    exit_code: int
    backend: str
    warnings: tuple[str, ...] = ()


class Counting:
    """A program that runs and is counted: `step` its `session` until that is False, then `finish`.
    Leaving the context early kills it.

    Under QEMU no trace is made. Single steps record one, into a temporary folder.
    """

    def __init__(self, request: Request, choice: Choice | None = None) -> None:
        self._choice = choice or choose(request)
        self._counts = Counts()
        self._files = ExitStack()
        self._session: Session
        self._counted: CountSession | None = None
        if self._choice.backend == "qemu":
            from rtit.capture.qemu.counting import start_counting

            self._counted = start_counting(request, self._read, found=self._choice.found)
            self._session = self._counted
        else:
            from rtit.capture.backends import start

            folder = self._files.enter_context(tempfile.TemporaryDirectory(prefix="rtit-stat-"))
            request = replace(request, output=Path(folder) / "perf.data")
            try:
                self._session = start(request, choice=self._choice)
            except BaseException:
                self._files.close()
                raise

    @property
    def session(self) -> Session:
        """The run under way."""
        return self._session

    def finish(self) -> Counted:
        """What it executed; it has ended."""
        if self._counted is None:
            return self._decoded()
        exit_code = self._counted.end()
        threads = self._counted.threads
        names = [f"thread {each.tid}" + f" ({each.name})" * bool(each.name) for each in threads]
        profile = self._counts.profile(
            [(name, each.instructions) for name, each in zip(names, threads, strict=True)]
        )
        tids, pids = {each.tid for each in threads}, {each.pid for each in threads}
        found = summed(profile, len(tids), len(pids))
        return Counted(found, exit_code, "qemu", tuple(self._counted.totals.warnings))

    def _decoded(self) -> Counted:
        from rtit.trace import Trace

        recording = self._session.finish()
        with Trace(recording.path) as trace:
            found = decoded(trace, trace.streams)
        return Counted(found, recording.exit_code, "ptrace", recording.warnings)

    def _read(self, file: int) -> Mapping[int, int]:
        found = read(file)
        self._counts.add(found)
        return found.threads

    def __enter__(self) -> Self:
        self._session.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._files:
            self._session.__exit__(kind, error, trace)


def stat(
    argv: Sequence[str],
    *,
    backend: str = "auto",
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
) -> Counted:
    """Run a program and count what it executes, with its threads and all that it starts.

    `argv` is the program and its arguments; the program is looked up in the PATH of `env` (None:
    ours, as is `cwd`). `backend` is `qemu`, `ptrace` (single steps), or `auto`. The counts are
    those that `rtit stat` finds in a recording of the same run. An exception (KeyboardInterrupt
    among them) kills the program. Raises UsageError for wrong options, RecordError if the program
    cannot be started (`exit_code` 125, 126, 127).
    """
    with Counting(Request(argv, backend=backend, env=env, cwd=cwd)) as counting:
        while counting.session.step(timeout=0.2):
            pass
        return counting.finish()
