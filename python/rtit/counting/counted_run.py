"""Runs of a program, counted; which counts differ between runs, and known reasons for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rtit.capture.backends import BackendChoice, choose_backend, fallback_from_qemu
from rtit.capture.request import RecordRequest
from rtit.counting.program_totals import (
    CALL,
    CONDITIONAL,
    INDIRECT_CALL,
    INDIRECT_JUMP,
    JUMP,
    RETURN,
    ProgramTotals,
)
from rtit.profile.losses import ProfileLosses
from rtit.profile.stat import Region, Stat, function_label, name_counts

if TYPE_CHECKING:
    from rtit.capture.qemu.counting import CountedProgram, CountSession
    from rtit.capture.session import RecordingSession
    from rtit.counting.process_counts import CountAccumulator


@dataclass(frozen=True, slots=True)
class CountedRun:
    """A program that has ended, and what it executed."""

    stat: Stat
    exit_code: int
    backend: str
    warnings: tuple[str, ...] = ()
    whole: bool = True


def choose_counting_backend(request: RecordRequest) -> BackendChoice:
    """Return the back end that counts. Raises UsageError, RecordError."""
    return choose_backend(request, preload_module="rtit.capture.qemu.counting")


class CountingRun:
    """A program that runs and is counted: `step` its `session` until that is False, then `finish`.
    Leaving the context early kills it.

    Under QEMU no trace is made. Single steps record one, into a temporary folder; so does QEMU if
    only a `region` is counted. With `where` False the functions and files of the instructions are
    not needed: that takes less time. `max_counters` is as for `rtit.Trace`. Raises UsageError if it
    is out of range.
    """

    def __init__(
        self,
        request: RecordRequest,
        choice: BackendChoice | None = None,
        *,
        where: bool = True,
        max_counters: int = 0,
        region: Region | None = None,
    ) -> None:
        if max_counters:
            from rtit.trace.recording.decoder_settings import Settings, check_settings

            check_settings(Settings(max_counters=max_counters))
        self._choice = choice or choose_counting_backend(request)
        self._where = where
        self._max_counters = max_counters
        self._region = region
        self._program_totals = ProgramTotals()
        self._counts: CountAccumulator | None = None
        self._files = ExitStack()
        self._session: RecordingSession
        self._counted: CountSession | None = None
        if self._choice.backend == "qemu" and region is None:
            from rtit.capture.qemu.counting import start_counting
            from rtit.capture.qemu.installation import QemuStartError

            try:
                self._counted = start_counting(
                    request, self._read_process_counts, installation=self._choice.found
                )
                self._session = self._counted
            except QemuStartError as error:
                self._choice = fallback_from_qemu(request, error)
        if self._counted is None:
            import tempfile

            from rtit.capture.backends import start_recording

            folder = self._files.enter_context(tempfile.TemporaryDirectory(prefix="rtit-stat-"))
            request = replace(request, output=Path(folder) / "perf.data")
            try:
                self._session = start_recording(request, choice=self._choice)
            except BaseException:
                self._files.close()
                raise

    @property
    def session(self) -> RecordingSession:
        """The run under way."""
        return self._session

    def finish(self) -> CountedRun:
        """Return what the program executed; it has ended."""
        if self._counted is None:
            return self._count_by_decoding()
        exit_code = self._counted.finish_counting()
        threads = self._counted.threads
        names = [f"thread {each.tid}" + f" ({each.name})" * bool(each.name) for each in threads]
        by_thread = [(name, each.instructions) for name, each in zip(names, threads, strict=True)]
        tids, pids = {each.tid for each in threads}, {each.pid for each in threads}
        found = self._build_stat(by_thread, len(tids), len(pids))
        processes, tests = _count_processes(self._counted.programs)
        found = replace(found, processes=processes, tests=tests)
        warnings = tuple(self._counted.totals.warnings)
        return CountedRun(found, exit_code, "qemu", warnings, self._counted.is_complete)

    def _build_stat(self, by_thread: list[tuple[str, int]], tids: int, pids: int) -> Stat:
        totals, exits = self._program_totals, self._program_totals.exits
        found = Stat(Counter(), Counter(), Counter(), Counter(), ProfileLosses())
        if self._counts is not None:
            from rtit.profile.stat import summarize_profile

            found = summarize_profile(self._counts.build_profile(by_thread), tids, pids)
        alone = name_counts(
            totals.instructions,
            exits[CONDITIONAL],
            (sum(exits[JUMP]), sum(exits[INDIRECT_JUMP])),
            (sum(exits[CALL]), sum(exits[INDIRECT_CALL])),
            sum(exits[RETURN]),
            totals.system_calls,
            0,
            0,
        )
        counts = {name: found.counts.get(name, 0) + count for name, count in alone.items()}
        counts |= {"threads": tids, "processes": pids}
        threads: Counter[str] = Counter()
        for name, count in by_thread:
            threads[name] += count
        return replace(found, counts=counts, threads=threads)

    def _count_by_decoding(self) -> CountedRun:
        from rtit.profile.regions import count_recording
        from rtit.trace import Trace

        recording = self._session.finish()
        with Trace(recording.path, max_counters=self._max_counters) as trace:
            found = count_recording(trace, self._region)
        return CountedRun(found, recording.exit_code, self._choice.backend, recording.warnings)

    def _read_process_counts(self, file: int) -> Mapping[int, int]:
        if not self._where and self._program_totals.add_process_file(file):
            return {}
        from rtit.counting.process_counts import CountAccumulator, read_process_counts

        found = read_process_counts(file)
        self._counts = self._counts or CountAccumulator(self._max_counters)
        self._counts.add_process(found)
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


def _count_processes(
    programs: Iterable[CountedProgram],
) -> tuple[Counter[str], Counter[str]]:
    """Return the instructions of all processes, and of those that ran one test, by label."""
    from rtit.counting.process_labels import process_label, test_label

    processes: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for each in programs:
        processes[process_label(each.argv)] += each.instructions
        if (test := test_label(each.argv)) is not None:
            tests[test] += each.instructions
    return processes, tests


def stat(
    argv: Sequence[str],
    *,
    backend: str = "auto",
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    max_counters: int = 0,
    function: str = "",
    between: tuple[str, str] | None = None,
) -> CountedRun:
    """Run a program and count what it executes, with its threads and all that it starts.

    `argv` is the program and its arguments; the program is looked up in the PATH of `env` (None:
    ours, as is `cwd`). `backend` is `qemu`, `ptrace` (single steps), or `auto`. The counts are
    those that `rtit stat` finds in a recording of the same run; `max_counters` is the number of
    addresses with counts of their own (0: 4,194,304). `function` or `between` count only a part of
    the run, as `--function F` and `--from A --to B` of `rtit stat` do; the program is then
    recorded. An exception (also KeyboardInterrupt) kills the program. Raises UsageError for wrong
    options, and unknown or ambiguous functions; RecordError if the program cannot be started
    (`exit_code` 125, 126, 127).
    """
    request = RecordRequest(argv, backend=backend, env=env, cwd=cwd)
    region = Region.from_parameters(function, between)
    with CountingRun(request, max_counters=max_counters, region=region) as counting:
        while counting.session.step(timeout=0.2):
            pass
        return counting.finish()


Range = tuple[str, int, int]
"""A name, the least count and the greatest."""

_REASONS = {
    "python": "python uses a different hash seed in each run: PYTHONHASHSEED=0 fixes the seed",
    "perl": "perl uses a different hash seed in each run: PERL_HASH_SEED=0 fixes the seed",
    "ruby": "ruby uses a different hash seed in each run",
    "node": "node compiles code and collects garbage in other threads: --single-threaded uses "
    "only one thread",
}
_SHARED = (
    "threads run in a different order in each run, and wait for each other a different number of "
    "times: taskset -c 0 helps, and using only one thread helps more"
)
_ANY = (
    "other possible causes: times and process ids that the program prints or hashes, random "
    "seeds, the files that the program finds and their order, and the size of the environment"
)


@dataclass(frozen=True, slots=True)
class RunVariation:
    """The counts of several runs of one program; at least one run."""

    runs: Sequence[Stat]

    @property
    def run_with_fewest_instructions(self) -> Stat:
        """Return the run with the fewest instructions."""
        return min(self.runs, key=lambda each: each.counts["instructions"])

    @property
    def differing_counts(self) -> list[Range]:
        """Return the counts that differ, in order."""
        return _differing_counts([each.counts for each in self.runs])

    @property
    def differing_functions(self) -> list[Range]:
        """Return the functions with different counts, those with the most instructions first."""
        tables = [
            {function_label(each): count for each, count in run.functions.items()}
            for run in self.runs
        ]
        return sorted(_differing_counts(tables), key=lambda each: (each[1] - each[2], each[0]))

    def explain_differences(self) -> list[str]:
        """Return a sentence for each known reason for such differences; none if runs are equal."""
        if not self.differing_counts and not self.differing_functions:
            return []
        files = {name for run in self.runs for name in run.files}
        found = [
            text
            for name, text in _REASONS.items()
            if any(each.removeprefix("lib").startswith(name) for each in files)
        ]
        if any(run.counts["threads"] > run.counts["processes"] for run in self.runs):
            found.append(_SHARED)
        return [*found, _ANY]

    def as_json(self) -> dict[str, object]:
        """Return the counts of each run that had not the same in all."""
        return {
            "instructions": [each.counts["instructions"] for each in self.runs],
            "counts": {name: [least, most] for name, least, most in self.differing_counts},
            "functions": {name: [least, most] for name, least, most in self.differing_functions},
            "why": self.explain_differences(),
        }


def _differing_counts(tables: Sequence[Mapping[str, int]]) -> list[Range]:
    names: Iterable[str] = dict.fromkeys(name for table in tables for name in table)
    found = []
    for name in names:
        each = [table.get(name, 0) for table in tables]
        if min(each) != max(each):
            found.append((name, min(each), max(each)))
    return found
