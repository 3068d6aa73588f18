"""The history of counts: an SQLite file to which each run appends, and the changes of level in it.

SQLite comes with Python, appends of several processes at the same time are atomic, and an
interrupted append leaves nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median, median_high, median_low
from typing import TYPE_CHECKING, Any

from rtit.errors import InputError
from rtit.profile.stat import Stat, function_label

if TYPE_CHECKING:
    import sqlite3

_TABLES = (
    """
CREATE TABLE IF NOT EXISTS runs (
    run INTEGER PRIMARY KEY,
    time TEXT NOT NULL,         -- UTC, as 2026-01-31T12:00:00Z
    "commit" TEXT,              -- of git; ends in -dirty if files were changed
    program TEXT NOT NULL,      -- name and arguments, or the recording
    region TEXT NOT NULL,       -- --function, or --from and --to; empty for the whole run
    labels TEXT NOT NULL        -- of --label, as a JSON object
)""",
    """
CREATE TABLE IF NOT EXISTS counts (
    run INTEGER NOT NULL REFERENCES runs(run),
    kind TEXT NOT NULL,         -- count, function, process or test
    name TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (run, kind, name)
) WITHOUT ROWID""",
)
_QUERY = (
    'SELECT program, region, labels, kind, name, time, "commit", value '
    "FROM runs JOIN counts USING (run) ORDER BY program, region, labels, kind, name, run"
)
_WAIT_SECONDS = 60
"""How long a writer waits for others."""
_MIN_SHARE = 1000
"""Functions with less than 1/1000 of the instructions are not stored."""


def create_history(path: str) -> None:
    """Create the tables in a file, unless it has them.

    Raises InputError if the file is no history, or cannot be written.
    """
    with _readable_errors(path), closing(_connect(path)) as database, database:
        # Several processes may create the tables at the same time.
        database.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            database.execute(statement)
        database.execute(f"{_QUERY} LIMIT 0")


def append_run(
    path: str, found: Stat, program: str, region: str = "", labels: Mapping[str, str] | None = None
) -> None:
    """Append the counts of a run, with the time and the commit of the current folder.

    `path` is a file of `create_history`. Raises InputError if it cannot be written.
    """
    smallest = max(found.counts["instructions"] / _MIN_SHARE, 1)
    functions = {function_label(each): count for each, count in found.functions.items()}
    tables: dict[str, Mapping[str, int]] = {
        "count": found.counts,
        "function": {name: count for name, count in functions.items() if count >= smallest},
        "process": found.processes,
        "test": found.tests,
    }
    stored_labels = json.dumps(dict(sorted((labels or {}).items())))
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = time, current_commit(), _encodable(program), _encodable(region), stored_labels
    with _readable_errors(path), closing(_connect(path)) as database, database:
        database.execute("BEGIN IMMEDIATE")
        number = database.execute(
            'INSERT INTO runs (time, "commit", program, region, labels) VALUES (?, ?, ?, ?, ?)', run
        ).lastrowid
        database.executemany(
            "INSERT OR REPLACE INTO counts VALUES (?, ?, ?, ?)",
            [
                (number, kind, _encodable(name), value)
                for kind, table in tables.items()
                for name, value in table.items()
            ],
        )


def _encodable(name: str) -> str:
    """Return a name without the surrogates of bytes that are no UTF-8."""
    return name.encode("utf-8", "replace").decode()


def current_commit() -> str | None:
    """Return the commit of the current folder, with "-dirty" if files were changed; None outside of
    a git work tree.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return ended.stdout.strip() or None


@dataclass(frozen=True, slots=True)
class HistoryRun:
    """The time of a run, and its commit; None outside of a git work tree."""

    time: str
    commit: str | None


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of level: the runs from number `index` on have the median `after`."""

    index: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Series:
    """One count of one program over time. `kind` is count, function, process or test."""

    program: str
    region: str
    labels: Mapping[str, str]
    kind: str
    name: str
    runs: list[HistoryRun] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    def changes(self) -> list[LevelChange]:
        """Return the changes of level."""
        return find_level_changes(self.values)


def read_series(path: str) -> list[Series]:
    """Return all series of a history, each in the order of its runs.

    Raises InputError if the file is no history.
    """
    found: dict[tuple[str, ...], Series] = {}
    Path(path).stat()
    with _readable_errors(path), closing(_connect(path)) as database:
        for *key, time, commit, value in database.execute(_QUERY):
            program, region, labels, kind, name = key
            series = found.get(tuple(key))
            if series is None:
                series = Series(program, region, json.loads(labels), kind, name)
                found[tuple(key)] = series
            series.runs.append(HistoryRun(time, commit))
            series.values.append(value)
    return list(found.values())


def history_json(found: Sequence[Series]) -> list[dict[str, Any]]:
    """Return the series as JSON, with their changes of level."""
    return [
        {
            "program": each.program,
            "region": each.region,
            "labels": dict(each.labels),
            "kind": each.kind,
            "name": each.name,
            "runs": [{"time": run.time, "commit": run.commit} for run in each.runs],
            "values": each.values,
            "changes": [
                {"run": change.index, "before": change.before, "after": change.after}
                for change in each.changes()
            ],
        }
        for each in found
    ]


def history_lines(found: Sequence[Series], top: int) -> Iterator[str]:
    """Iterate over lines with the latest value of each series, and its changes of level.

    Of each program these are the instructions, the tests, and the series that changed: at most
    `top` of each kind.
    """
    by_program: dict[str, list[Series]] = {}
    for each in found:
        by_program.setdefault(_program_title(each), []).append(each)
    for title, series in by_program.items():
        yield title
        shown: Counter[str] = Counter()
        for each in sorted(series, key=_display_order):
            changes = each.changes()
            if not (changes or each.kind == "test" or each.name == "instructions"):
                continue
            shown[each.kind] += 1
            if shown[each.kind] > top:
                continue
            runs = f"{len(each.runs):,} run{'s' * (len(each.runs) != 1)}"
            kind = "" if each.kind == "count" else f"{each.kind} "
            yield f"{each.values[-1]:18,}  {kind}{each.name} ({runs}, last {each.runs[-1].time})"
            for change in changes:
                yield _change_line(each, change)
        for kind, count in shown.items():
            if count > top:
                yield f"{'':18}  ... and {count - top:,} more of kind {kind}"


_KINDS = ("count", "test", "process", "function")


def _display_order(series: Series) -> tuple[int, bool]:
    return _KINDS.index(series.kind), series.name != "instructions"


def _program_title(series: Series) -> str:
    labels = "".join(f" {name}={value}" for name, value in series.labels.items())
    region = f": {series.region}" if series.region else ""
    return f"{series.program}{region}{f' [{labels.strip()}]' if labels else ''}"


def _change_line(series: Series, change: LevelChange) -> str:
    run = series.runs[change.index]
    commit = f", commit {run.commit.replace('-dirty', '')[:12]}" if run.commit else ""
    dirty = " with local changes" if run.commit and run.commit.endswith("-dirty") else ""
    share = f" ({(change.after - change.before) / change.before:+.4%})" if change.before else ""
    return (
        f"{change.after - change.before:+18,}    {run.time}{commit}{dirty}: "
        f"{change.before:,} -> {change.after:,}{share}"
    )


def _connect(path: str) -> sqlite3.Connection:
    import sqlite3

    return sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)


@contextmanager
def _readable_errors(path: str) -> Iterator[None]:
    """Raise InputError in place of the errors of SQLite."""
    import sqlite3

    try:
        yield
    except (sqlite3.Error, ValueError) as error:
        raise InputError(f"unusable history of counts: {error}", source=path) from None


_RUNS_BEFORE, _RUNS_AFTER = 20, 5
"""How many runs make the level before a run, and after it."""
_NOISE_FACTOR = 5
_MIN_RUNS = 4


def find_level_changes(values: Sequence[int]) -> list[LevelChange]:
    """Return where the level of a series changes by more than its noise.

    The noise is the median absolute difference between consecutive values. The old level is the
    median of the last 20 values since the last change; the new level that of a value and the next
    4. The level changes at a value if the value and the new level both differ from the old level by
    more than 5 times the noise, and if the value is nearer to the new level than both are to the
    old one. One outlier changes no level, unless it is the newest value. A series of fewer than 4
    values has no changes.
    """
    if len(values) < _MIN_RUNS:
        return []
    limit = _NOISE_FACTOR * median_high([abs(new - old) for old, new in pairwise(values)])
    found: list[tuple[int, int]] = []
    begin = 0
    for index in range(1, len(values)):
        before = median_low(values[max(begin, index - _RUNS_BEFORE) : index])
        after = median(values[index : index + _RUNS_AFTER])
        distance = min(abs(values[index] - before), abs(after - before))
        if distance > limit and abs(values[index] - after) < distance:
            found.append((index, before))
            begin = index
    return [
        LevelChange(index, before, median_low(values[index:end]))
        for (index, before), (end, _) in pairwise([*found, (len(values), 0)])
    ]
