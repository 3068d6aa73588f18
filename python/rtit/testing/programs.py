"""Runs, counts, records and compares programs in a test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtit.counting.counted_run import CountedRun
from rtit.counting.counted_run import stat as count_program
from rtit.errors import RtitError
from rtit.profile.regions import count_recording
from rtit.profile.stat import Region, function_label
from rtit.testing.baseline import Baselines, StoredCount, compare_counts, parse_tolerance
from rtit.trace import Trace

if TYPE_CHECKING:
    from rtit.capture.session import Recording

Argv = Sequence[str | os.PathLike[str]]


class Programs:
    """The fixture `rtit` of one test."""

    def __init__(
        self,
        test: str,
        baselines: Baselines,
        *,
        update: bool = False,
        keeps_recordings: bool = False,
    ) -> None:
        """Serve the test of this name.

        `update` stores counts as baselines. With `keeps_recordings`, counted programs are recorded
        too, so that recordings of a failing test can be kept.
        """
        self._test = test
        self._baselines = baselines
        self._update = update
        self._keeps_recordings = keeps_recordings
        self._folder = tempfile.TemporaryDirectory(prefix="rtit-test-")
        self._recordings: list[Path] = []

    def record(self, argv: Argv, **options: Any) -> Recording:
        """Record a program, to a file that exists until the end of the test.

        `options` are those of `rtit.record`. Without `env` the program gets the current environment
        without the variables of pytest, which differ between tests, and PYTHONHASHSEED=0 unless it
        is set. Raises UsageError, RecordError.
        """
        from rtit.capture.backends import record

        number = len(self._recordings)
        options.setdefault("env", environment())
        options.setdefault("output", Path(self._folder.name) / f"{number}.data")
        self._recordings.append(Path(options["output"]))
        return record([os.fspath(word) for word in argv], **options)

    def stat(
        self,
        argv: Argv,
        *,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        function: str = "",
        between: tuple[str, str] | None = None,
    ) -> CountedRun:
        """Run a program and count what it executes, as `rtit.stat` does: all of it, the calls of
        `function`, or from each execution of one function to the next one of another (`between`).

        For `env`, see `record`. Raises AssertionError if the exit code is not 0 (unless `check` is
        False), or if a part of the execution could not be counted; UsageError, RecordError.
        """
        words = [os.fspath(word) for word in argv]
        region = Region.from_parameters(function, between)
        counted = self._run_counted(words, env if env is not None else environment(), cwd, region)
        if check and counted.exit_code:
            raise AssertionError(f"{words[0]} ended with exit code {counted.exit_code}")
        if missing := [*counted.warnings, *counted.stat.describe_uncounted_code]:
            raise AssertionError(f"{words[0]}: not all is counted: {'; '.join(missing)}")
        return counted

    def _run_counted(
        self, argv: list[str], env: Mapping[str, str], cwd: Path | str | None, region: Region | None
    ) -> CountedRun:
        if not self._keeps_recordings and region is None:
            return count_program(argv, env=env, cwd=cwd)
        recording = self.record(argv, env=env, cwd=cwd)
        with Trace(recording.path) as trace:
            found = count_recording(trace, region)
        return CountedRun(found, recording.exit_code, "a recording", recording.warnings)

    def assert_instructions(
        self, count: int | CountedRun, within: str = "0.1%", *, name: str = ""
    ) -> None:
        """Check that there are as many instructions as stored by `pytest --rtit-update`, `within` a
        percentage.

        A test with several counts gives each a `name`. Raises AssertionError with the functions
        that changed most, or if nothing is stored; UsageError if `within` is no percentage;
        InputError if the baseline cannot be read.
        """
        tolerance = parse_tolerance(within)
        current = (
            StoredCount(count, {})
            if isinstance(count, int)
            else StoredCount.without_small_functions(
                count.stat.counts["instructions"],
                {function_label(each): n for each, n in count.stat.functions.items()},
            )
        )
        key = f"{self._test}: {name}" if name else self._test
        stored = self._baselines.get(key)
        if self._update:
            if stored is None or compare_counts(stored, current, tolerance) is not None:
                self._baselines.store(key, current)
            return
        path = self._baselines.path
        if stored is None:
            raise AssertionError(
                f"{current.instructions:,} instructions, and no baseline: "
                f"pytest --rtit-update stores them in {path}"
            )
        if (problem := compare_counts(stored, current, tolerance)) is not None:
            raise AssertionError(f"{problem}\n(pytest --rtit-update stores them in {path})")

    def assert_same_path(
        self,
        left: Recording | Trace | str | os.PathLike[str],
        right: Recording | Trace | str | os.PathLike[str],
    ) -> None:
        """Check that two recordings have the same path, as `rtit.assert_same_path` does."""
        from rtit.diff.diff_traces import assert_same_path

        one, other = (
            each if isinstance(each, Trace | str | os.PathLike) else each.path
            for each in (left, right)
        )
        assert_same_path(one, other)

    def keep(self, folder: Path) -> list[str]:
        """Pack the recordings into a folder, each with the files that it needs; return a line for
        each.
        """
        from rtit.trace.recording.pack_writer import write_pack

        lines = []
        for number, path in enumerate(self._recordings):
            pack = folder / f"{number}.rtit.zip"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with Trace(path) as trace, pack.open("wb") as file:
                    write_pack(trace, file)
                lines.append(str(pack))
            except (RtitError, OSError) as error:
                lines.append(f"recording {number} is not kept: {error}")
        return lines

    def store_coverage(self, folder: Path, test: str) -> None:
        """Store what the recordings ran, for the test with this node id. Raises OSError."""
        from rtit.coverage.by_test import coverage_of_test, write_coverage_of_test
        from rtit.coverage.file_coverage import Coverage
        from rtit.profile.builder import build_profile

        found = Coverage()
        for path in self._recordings:
            try:
                with Trace(path) as trace:
                    found.add(build_profile(trace, trace.by_thread()), test)
            except (RtitError, OSError) as error:
                found.losses.append(f"{test}: {error}")
                found.has_gaps = True
        if self._recordings:
            write_coverage_of_test(folder, coverage_of_test(test, found))

    def close(self) -> None:
        """Remove the recordings."""
        self._folder.cleanup()


def environment() -> dict[str, str]:
    """Return an environment in which a program does the same each time."""
    found = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    found.setdefault("PYTHONHASHSEED", "0")
    return found
