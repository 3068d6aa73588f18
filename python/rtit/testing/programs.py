"""What a test does with programs: run, count, record, compare."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtit.counting.run import CountedRun
from rtit.counting.run import stat as count_program
from rtit.errors import RtitError
from rtit.profile.stat import function_label, stat
from rtit.testing.baseline import Baselines, StoredCount, compare_counts, parse_tolerance
from rtit.trace import Trace

if TYPE_CHECKING:
    from rtit.capture.recording import Recording

Argv = Sequence[str | os.PathLike[str]]


class Programs:
    """The fixture `rtit` of one test."""

    def __init__(
        self, test: str, baselines: Baselines, *, update: bool = False, keeps: bool = False
    ) -> None:
        """Of the test of this name. `update` stores counts; `keeps`: what runs may be wanted later,
        so that what is counted is recorded, too.
        """
        self._test = test
        self._baselines = baselines
        self._update = update
        self._keeps = keeps
        self._folder = tempfile.TemporaryDirectory(prefix="rtit-test-")
        self._recordings: list[Path] = []

    def record(self, argv: Argv, **options: Any) -> Recording:
        """Run a program and record it, to a file that is there until the test has ended.

        `options` are those of `rtit.record`. Without `env` the program gets ours, but for what
        pytest sets, which differs from test to test, and PYTHONHASHSEED=0 if it is not set. Raises
        UsageError, RecordError.
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
    ) -> CountedRun:
        """Run a program and count what it executes, as `rtit.stat` does.

        Without `env`, see `record`. Raises AssertionError if its exit code is not 0, unless `check`
        is False; or if something of what it executed could not be counted; UsageError, RecordError.
        """
        words = [os.fspath(word) for word in argv]
        counted = self._counted(words, env if env is not None else environment(), cwd)
        if check and counted.exit_code:
            raise AssertionError(f"{words[0]} ended with exit code {counted.exit_code}")
        if missing := [*counted.warnings, *counted.stat.missing]:
            raise AssertionError(f"{words[0]}: not all is counted: {'; '.join(missing)}")
        return counted

    def _counted(
        self, argv: list[str], env: Mapping[str, str], cwd: Path | str | None
    ) -> CountedRun:
        if not self._keeps:
            return count_program(argv, env=env, cwd=cwd)
        recording = self.record(argv, env=env, cwd=cwd)
        with Trace(recording.path) as trace:
            found = stat(trace, trace.threads)
        return CountedRun(found, recording.exit_code, "a recording", recording.warnings)

    def assert_instructions(
        self, count: int | CountedRun, within: str = "0.1%", *, name: str = ""
    ) -> None:
        """That there are as many instructions as there were when `pytest --rtit-update` stored
        them, `within` a percentage more or fewer. A test with several counts gives each a `name`.

        Raises AssertionError with the functions that changed most, or if nothing was stored;
        UsageError if `within` is no percentage, InputError if what was stored cannot be read.
        """
        share = _within(parse_tolerance)
        now = (
            StoredCount(count, {})
            if isinstance(count, int)
            else StoredCount.without_small_functions(
                count.stat.counts["instructions"],
                {function_label(each): n for each, n in count.stat.functions.items()},
            )
        )
        key = f"{self._test}: {name}" if name else self._test
        before = self._baselines.get(key)
        if self._update:
            if before is None or compare_counts(before, now, share) is not None:
                self._baselines.store(key, now)
            return
        path = self._baselines.path
        if before is None:
            raise AssertionError(
                f"{now.instructions:,} instructions, and no baseline: pytest --rtit-update stores "
                f"them in {path}"
            )
        if (wrong := compare_counts(before, now, share)) is not None:
            raise AssertionError(f"{wrong}\n(pytest --rtit-update stores them in {path})")

    def assert_same_path(
        self,
        left: Recording | Trace | str | os.PathLike[str],
        right: Recording | Trace | str | os.PathLike[str],
    ) -> None:
        """As `rtit.assert_same_path`, of recordings, too."""
        from rtit.diff.diff_traces import assert_same_path

        one, other = (
            each if isinstance(each, Trace | str | os.PathLike) else each.path
            for each in (left, right)
        )
        assert_same_path(one, other)

    def keep(self, folder: Path) -> list[str]:
        """Put what was recorded into a folder, each with the files that it needs (`rtit pack`). A
        line about each, for people.
        """
        from rtit.trace.recording.packs import write_pack

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

    def close(self) -> None:
        """Remove what was recorded."""
        self._folder.cleanup()


def environment() -> dict[str, str]:
    """Of a program that is to do the same each time."""
    found = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    found.setdefault("PYTHONHASHSEED", "0")
    return found


_within = parse_tolerance  # a parameter has the same name
