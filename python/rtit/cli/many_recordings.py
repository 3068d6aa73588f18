"""Commands on many recordings: a process for each, and results in the order of the recordings.

Each recording is decoded in a process of its own, at most --jobs at a time, or by a worker of the
Dask cluster of --dask. The results are used in the order of the names, so that the output does not
depend on who decoded.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.cli import options, output
from rtit.cli.progress import StatusLine, describe_recordings, show_progress
from rtit.errors import RtitError, UsageError, WorkerDiedError
from rtit.remote_files import display_name

if TYPE_CHECKING:
    from rtit.image import Files
    from rtit.profile.tables import Profile
    from rtit.trace import Selection, Stream

T = TypeVar("T")
Work = Callable[[argparse.Namespace, set[str]], T]
"""Returns the result of the recording that the arguments name, as a value that can be pickled, and
adds the entries of --map that are in the recording to the set.
"""


@dataclass(slots=True)
class ManyRecordings:
    """The recordings of a command, and those that could not be read.

    `matched_maps` collects the entries of --map that are in a recording. Raises UsageError for
    options that contradict each other.
    """

    command: str
    arguments: argparse.Namespace
    names: Sequence[str | None]
    matched_maps: set[str] = field(default_factory=set)
    unreadable: dict[str, str] = field(default_factory=dict)
    """By name of each recording that could not be read: a sentence with the name and the reason."""

    def __post_init__(self) -> None:
        if self.arguments.dask is None:
            return
        if self.arguments.jobs:
            raise UsageError(
                "--jobs and --dask cannot be combined: the cluster has its own workers"
            )
        if "-" in self.names:
            raise UsageError("--dask cannot send standard input to the workers: give a file")
        # the workers have other working directories
        self.names = [name and options.absolute_path(name) for name in self.names]
        self.arguments = options.with_absolute_paths(self.arguments)

    def results(self, work: Work[T]) -> Iterator[T]:
        """Iterate over the results of the readable recordings, in the order of the names.

        Raises RtitError at the end if no recording could be read; if there is only one recording,
        raises what `work` raises.
        """
        for _, result in self.results_by_name(work):
            yield result

    def results_by_name(self, work: Work[T]) -> Iterator[tuple[str, T]]:
        """Iterate over name and result of the readable recordings. Raises as `results`."""
        if len(self.names) == 1:
            self.arguments.file, self.arguments.input = self.names[0], None
            yield self.names[0] or "", work(self.arguments, self.matched_maps)
            return
        names = [name for name in self.names if name is not None]
        has_readable = False
        for name, outcome in zip(names, self._outcomes(work, names), strict=True):
            self.matched_maps |= outcome.matched_maps
            if outcome.error is None:
                has_readable = True
                yield name, outcome.result
            else:
                reason, shown = outcome.error, display_name(name)
                self.unreadable[shown] = reason if shown in reason else f"{shown}: {reason}"
        if not has_readable:
            for line in self.unreadable.values():
                output.print_error(self.command, f"missing: {line}")
            raise RtitError(f"none of the {len(names):,} recordings could be read")

    def profiles(self, where: Selection) -> Iterator[tuple[str, Profile]]:
        """Iterate over path and profile of each readable recording. Raises as `results`."""
        from rtit.profile.many_profiles import SharedFiles

        shared = SharedFiles()
        detaches = self.uses_processes
        work = partial(_build_profile, self.command, where, detaches)
        with ExitStack() as traces:

            def open_files(name: str) -> Files:
                trace = options.open_trace(_arguments_of(self.arguments, name, 1), set())
                return traces.enter_context(trace).images.files

            for name, (path, found) in self.results_by_name(work):
                yield (
                    path,
                    (
                        shared.attach(found, partial(open_files, name or path))
                        if detaches
                        else found
                    ),
                )
                traces.close()

    @property
    def processes(self) -> int:
        """The number of processes on this machine that decode; 1: this process does."""
        if len(self.names) == 1 or "-" in self.names:
            return 1  # the standard input is read once
        from rtit.worker_processes import default_processes

        jobs = options.parse_jobs(self.arguments)
        return min(jobs or default_processes(), len(self.names))

    @property
    def uses_processes(self) -> bool:
        """Whether other processes decode, here or on a cluster."""
        return len(self.names) > 1 and (self.processes > 1 or self.arguments.dask is not None)

    def _outcomes(self, work: Work[T], names: Sequence[str]) -> Iterator[_Outcome]:
        from rtit.worker_processes import connect_to_cluster, run_in_order

        threads = max(1, options.parse_jobs(self.arguments) // self.processes)
        work_on = partial(_outcome_of, work, self.arguments, threads)
        line = StatusLine(sys.stderr)
        address = self.arguments.dask
        with nullcontext() if address is None else connect_to_cluster(address) as client:
            try:
                outcomes = run_in_order(work_on, names, self.processes, client)
                for count, outcome in enumerate(outcomes, 1):
                    if line.is_due():
                        text = describe_recordings(count, len(names), line.elapsed_seconds)
                        line.show_text(f"rtit {self.command}: {text}")
                    yield (
                        _Outcome(error=str(outcome))
                        if isinstance(outcome, WorkerDiedError)
                        else outcome
                    )
            finally:
                line.erase_text()


def _arguments_of(arguments: argparse.Namespace, name: str, threads: int) -> argparse.Namespace:
    """Return the arguments for a command that decodes only recording `name`, with `threads`."""
    found = copy.copy(arguments)
    found.file, found.input = name, None
    found.jobs = threads
    found.is_one_of_many = True
    return found


def _build_profile(
    command: str,
    where: Selection,
    detaches: bool,
    arguments: argparse.Namespace,
    matched: set[str],
) -> tuple[str, Profile]:
    """Return path and profile of a recording; `detaches`: for another process."""
    from rtit.profile.builder import build_profile
    from rtit.profile.many_profiles import detach_files

    with options.open_trace(arguments, matched) as trace:
        streams = trace.by_thread(where)
        with progress_of_recording(command, arguments, streams):
            found = build_profile(trace, streams)
        return trace.path, detach_files(found) if detaches else found


def progress_of_recording(
    command: str, arguments: argparse.Namespace, streams: Sequence[Stream]
) -> AbstractContextManager[None]:
    """Return the progress of a recording, to be shown unless it is one of many."""
    if getattr(arguments, "is_one_of_many", False):
        return nullcontext()
    return show_progress(command, streams, prints=False)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a recording, or the reason why it could not be read."""

    result: Any = None
    error: str | None = None
    matched_maps: frozenset[str] = frozenset()


def _outcome_of(work: Work[T], arguments: argparse.Namespace, threads: int, name: str) -> _Outcome:
    matched: set[str] = set()
    try:
        result = work(_arguments_of(arguments, name, threads), matched)
    except RtitError as error:
        return _Outcome(error=str(error), matched_maps=frozenset(matched))
    except OSError as error:
        return _Outcome(error=error.strerror or str(error), matched_maps=frozenset(matched))
    return _Outcome(result, matched_maps=frozenset(matched))
