"""The history of counts: what is stored, and where the level of a series changes."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.errors import InputError
from rtit.profile.history import append_run, create_history, find_level_changes, read_series
from rtit.profile.losses import ProfileLosses
from rtit.profile.stat import Stat
from support.recordings import Recorder, require_backend

ProgramBuilder = Callable[[str], Path]


def changes_of(values: list[int]) -> list[tuple[int, int, int]]:
    return [(each.index, each.before, each.after) for each in find_level_changes(values)]


def noisy(level: int, count: int, generator: random.Random) -> list[int]:
    return [round(generator.gauss(level, 100)) for _ in range(count)]


def test_shift_of_a_constant_series_is_a_change() -> None:
    assert changes_of([1000] * 10 + [1001] * 10) == [(10, 1000, 1001)]
    assert changes_of([1000] * 3 + [900] * 4 + [950] * 5) == [(3, 1000, 900), (7, 900, 950)]


def test_newest_value_is_a_change_at_once() -> None:
    assert changes_of([1000, 1000, 1000, 1010]) == [(3, 1000, 1010)]


def test_one_outlier_is_no_change() -> None:
    assert changes_of([1000] * 8 + [5000] + [1000] * 8) == []
    assert changes_of([1000] * 8 + [5000, 1000, 1000] + [1100] * 8) == [(11, 1000, 1100)]


def test_constant_and_short_series_have_no_change() -> None:
    for values in ([], [7], [7, 9], [7, 7, 9], [7] * 50):
        assert changes_of(values) == []


def test_noise_alone_is_no_change() -> None:
    generator = random.Random(7)
    found = [changes_of(noisy(1_000_000, 50, generator)) for _ in range(50)]
    assert sum(map(len, found)) <= 1


def test_shift_in_noise_is_found_where_it_is() -> None:
    generator = random.Random(11)
    for _ in range(50):
        values = noisy(1_000_000, 20, generator) + noisy(1_001_000, 20, generator)
        [(index, before, after)] = changes_of(values)
        assert index == 20
        assert abs(before - 1_000_000) < 100 > abs(after - 1_001_000)


def make_stat(instructions: int, **functions: int) -> Stat:
    table = Counter({(name, "a.out"): count for name, count in functions.items()})
    return Stat({"instructions": instructions}, table, Counter(), Counter(), ProfileLosses())


def test_history_has_a_series_for_each_program_region_label_and_name(tmp_path: Path) -> None:
    path = str(tmp_path / "history")
    for number in range(3):
        create_history(path)
        append_run(path, make_stat(10_000 + number, big=9000, small=3), "run 1")
        append_run(path, make_stat(50 + number), "run 1", "fib")
        append_run(path, make_stat(70 + number), "run 1", "", {"machine": "ci"})
    found = {
        (each.program, each.region, *each.labels.values(), each.kind, each.name): each.values
        for each in read_series(path)
    }
    assert found == {
        ("run 1", "", "count", "instructions"): [10_000, 10_001, 10_002],
        ("run 1", "", "function", "big (a.out)"): [9000] * 3,
        ("run 1", "fib", "count", "instructions"): [50, 51, 52],
        ("run 1", "", "ci", "count", "instructions"): [70, 71, 72],
    }


STAT = """
import signal, sys
from collections import Counter
from rtit.profile.history import append_run, create_history
from rtit.profile.losses import ProfileLosses
from rtit.profile.stat import Stat

def make_stat(instructions, tests):
    counts = {"instructions": instructions}
    return Stat(counts, Counter(), Counter(), Counter(), ProfileLosses(), tests=tests)
"""
APPEND_MANY = """
for number in range(8):
    create_history(sys.argv[1])
    append_run(sys.argv[1], make_stat(number, Counter()), sys.argv[2])
"""
APPEND_AND_DIE = """
class DyingCounter(Counter):
    def items(self):
        signal.raise_signal(signal.SIGKILL)

append_run(sys.argv[1], make_stat(9, DyingCounter()), "killed")
"""


def start_writer(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", STAT + script, *arguments])


def test_concurrent_writers_lose_no_run(tmp_path: Path) -> None:
    path = str(tmp_path / "history")
    writers = [start_writer(APPEND_MANY, path, name) for name in "ab"]
    assert [each.wait() for each in writers] == [0, 0]
    values = {
        each.program: each.values for each in read_series(path) if each.name == "instructions"
    }
    assert values == {"a": [*range(8)], "b": [*range(8)]}


def test_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "history")
    create_history(path)
    append_run(path, make_stat(5), "before")
    assert start_writer(APPEND_AND_DIE, path).wait() == -signal.SIGKILL
    append_run(path, make_stat(6), "after")
    with sqlite3.connect(path) as database:
        assert [*database.execute("SELECT program FROM runs")] == [("before",), ("after",)]
    assert {each.program: each.values for each in read_series(path)} == {
        "before": [5],
        "after": [6],
    }


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("no database" * 1000)
    other = tmp_path / "other"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE runs (number INTEGER)")
    for each in (path, other):
        with pytest.raises(InputError, match="unusable history of counts"):
            create_history(str(each))
        with pytest.raises(InputError, match="unusable history of counts"):
            read_series(str(each))
    with pytest.raises(FileNotFoundError):
        read_series(str(tmp_path / "absent"))
    assert not (tmp_path / "absent").exists()


def git(folder: Path, *words: str) -> str:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    settings = ["-c", "user.name=a", "-c", "user.email=b", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *settings, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_runs_are_appended_and_shown_with_commit_and_change(
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    require_backend("qemu")
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.chdir(tmp_path)
    for name in (*["recursion"] * 3, "pointers"):
        shutil.copy(program(name), tmp_path / "prog")
        assert main(["stat", "--history", "counts.db", "--label", "os=linux", "--", "./prog"]) == 0
    assert main(["stat", "--history", "counts.db", "--function", "down", "--",
                 str(program("recursion"))]) == 0  # fmt: skip
    capfd.readouterr()
    assert main(["stat", "--history", "counts.db", "--show", "--json"]) == 0
    series = json.loads(capfd.readouterr().out)
    [found] = [
        each for each in series if each["name"] == "instructions" and each["program"] == "prog"
    ]
    before, *_, after = found["values"]
    assert found["values"] == [before] * 3 + [after]
    assert found["labels"] == {"os": "linux"}
    assert found["changes"] == [{"run": 3, "before": before, "after": after}]
    assert {run["commit"] for run in found["runs"]} == {commit}
    assert {(each["program"], each["region"]) for each in series} == {
        ("prog", ""),
        ("recursion", "down"),
    }
    assert main(["stat", "--history", "counts.db", "--show", "--label", "os=linux"]) == 0
    text = capfd.readouterr().out
    assert text.startswith("prog [os=linux]\n")
    change = rf"{after - before:+,} +[-0-9T:Z]+, commit {commit[:12]}: {before:,} -> {after:,} "
    assert re.search(change, text)
    assert "recursion" not in text
    (tmp_path / "file").write_text("2")
    data = record([program("recursion")]).data
    assert main(["stat", "--history", "counts.db", "-i", str(data)]) == 0
    with sqlite3.connect("counts.db") as database:
        [row] = database.execute('SELECT "commit" FROM runs ORDER BY run DESC LIMIT 1')
    assert row == (f"{commit}-dirty",)


def test_failed_run_is_not_appended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require_backend("qemu")
    path = str(tmp_path / "counts.db")
    assert main(["stat", "--history", path, "--", "/bin/sh", "-c", "exit 3"]) == 3
    assert "the history does not get it" in capfd.readouterr().err
    assert read_series(path) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--show"], "need --history"),
        (["--label", "a=b"], "need --history"),
        (["--history", "absent/x", "--label", "a"], "expected NAME=VALUE"),
        (["--history", "absent/x", "--show", "--", "/bin/true"], "--show reads only"),
        (["--history", "absent/x", "--show", "--format", "markdown"], "--show cannot"),
    ],
)
def test_unusable_history_options_are_refused(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stat", *words]) == 2
    assert text in capsys.readouterr().err


def test_history_that_cannot_be_written_is_an_error_before_the_run(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["stat", "--history", "/proc/absent/x", "--", "/bin/echo", "ran"]) == 125
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("rtit stat: /proc/absent/x: ")
