"""Commands on many recordings: a process for each, and results in the order of the recordings.

Each recording is decoded in a process of its own, at most --jobs at a time. The results are used in
the order of the names, so that the output does not depend on --jobs.
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
from rtit.errors import RtitError
from rtit.remote_files import display_name

if TYPE_CHECKING:
    from rtit.image import Files
    from rtit.profile.tables import Profile
    from rtit.trace import Stream, Trace

    Selector = Callable[[Trace], Sequence[Stream]]

T = TypeVar("T")
Work = Callable[[argparse.Namespace, set[str]], T]
"""Returns the result of the recording that the arguments name, as a value that can be pickled, and
adds the entries of --map that are in the recording to the set.
"""


@dataclass(slots=True)
class ManyRecordings:
    """The recordings of a command, and those that could not be read.

    `matched_maps` collects the entries of --map that are in a recording.
    """

    command: str
    arguments: argparse.Namespace
    names: Sequence[str | None]
    matched_maps: set[str] = field(default_factory=set)
    unreadable: list[str] = field(default_factory=list)
    """A sentence for each recording that could not be read."""

    def results(self, work: Work[T]) -> Iterator[T]:
        """Iterate over the results of the readable recordings, in the order of the names.

        Raises RtitError at the end if no recording could be read; if there is only one recording,
        raises what `work` raises.
        """
        if len(self.names) == 1:
            self.arguments.file, self.arguments.input = self.names[0], None
            yield work(self.arguments, self.matched_maps)
            return
        names = [name for name in self.names if name is not None]

        def work_on(name: str) -> _Outcome:
            return _outcome_of(work, self._arguments_of(name))

        for name, outcome in zip(names, self._outcomes(work_on, names), strict=True):
            self.matched_maps |= outcome.matched_maps
            if outcome.error is None:
                yield outcome.result
            else:
                reason, shown = outcome.error, display_name(name)
                self.unreadable.append(reason if shown in reason else f"{shown}: {reason}")
        if len(self.unreadable) == len(names):
            for line in dict.fromkeys(self.unreadable):
                output.print_error(self.command, f"missing: {line}")
            raise RtitError(f"none of the {len(names):,} recordings could be read")

    def profiles(self, select: Selector) -> Iterator[tuple[str, Profile]]:
        """Iterate over path and profile of each readable recording.

        `select` returns the streams of a trace. Raises as `results`.
        """
        from rtit.profile.builder import build_profile
        from rtit.profile.many_profiles import SharedFiles, detach_files

        def build(
            arguments: argparse.Namespace, matched: set[str]
        ) -> tuple[str | None, str, Profile]:
            with options.open_trace(arguments, matched) as trace:
                streams = select(trace)
                with progress_of_recording(self.command, arguments, streams):
                    found = build_profile(trace, streams)
                found = detach_files(found) if self.processes > 1 else found
                return arguments.file, trace.path, found

        shared = SharedFiles()
        with ExitStack() as traces:

            def open_files(name: str) -> Files:
                trace = options.open_trace(self._arguments_of(name), set())
                return traces.enter_context(trace).images.files

            for name, path, profile in self.results(build):
                yield (
                    path,
                    (
                        shared.attach(profile, partial(open_files, name or path))
                        if self.processes > 1
                        else profile
                    ),
                )
                traces.close()

    @property
    def processes(self) -> int:
        """The number of processes that decode; 1: this process does."""
        if len(self.names) == 1 or "-" in self.names:
            return 1  # the standard input is read once
        from rtit.worker_processes import default_processes

        jobs = options.parse_jobs(self.arguments)
        return min(jobs or default_processes(), len(self.names))

    def _arguments_of(self, name: str) -> argparse.Namespace:
        arguments = copy.copy(self.arguments)
        arguments.file, arguments.input = name, None
        arguments.jobs = max(1, options.parse_jobs(self.arguments) // self.processes)
        arguments.is_one_of_many = True
        return arguments

    def _outcomes(
        self, work: Callable[[str], _Outcome], names: Sequence[str]
    ) -> Iterator[_Outcome]:
        outcomes: Iterator[_Outcome] = map(work, names)
        if self.processes > 1:
            from rtit.worker_processes import run_in_processes

            outcomes = run_in_processes(work, names, self.processes)
        line = StatusLine(sys.stderr)
        try:
            for count, outcome in enumerate(outcomes, 1):
                if line.is_due():
                    text = describe_recordings(count, len(names), line.elapsed_seconds)
                    line.show_text(f"rtit {self.command}: {text}")
                yield outcome
        finally:
            line.erase_text()


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


def _outcome_of(work: Work[T], arguments: argparse.Namespace) -> _Outcome:
    matched: set[str] = set()
    try:
        result = work(arguments, matched)
    except RtitError as error:
        return _Outcome(error=str(error), matched_maps=frozenset(matched))
    except OSError as error:
        return _Outcome(error=error.strerror or str(error), matched_maps=frozenset(matched))
    return _Outcome(result, matched_maps=frozenset(matched))
