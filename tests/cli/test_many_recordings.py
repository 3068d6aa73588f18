"""Commands that add up recordings: the sums are those of the programs, for any number of jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import rtit
import rtit.profile.builder
from rtit.cli.main import main
from rtit.errors import InputError
from rtit.profile.many_profiles import ProfileSum
from support.duckdb_files import ParquetQuery
from support.many_recordings import (
    COMMANDS,
    DAMAGED,
    add_damaged_recordings,
    calls_of_is_prime,
    copy_recordings,
)
from support.processes import wait_until
from support.recordings import RTIT, Recorder

COPIES = 20


@pytest.fixture
def folder(primes: Path, record: Recorder, tmp_path: Path) -> Path:
    """Return a folder of 20 recordings, some in a folder below it, one of them a pack."""
    copy_recordings(tmp_path / "runs", COPIES, record, primes)
    packed = tmp_path / "runs" / "below" / "01.data"
    assert main(["pack", str(packed), "-o", str(packed.with_suffix(".rtit.zip"))]) == 0
    packed.unlink()
    return tmp_path / "runs"


@pytest.fixture
def damaged(folder: Path) -> Path:
    """Return the folder with three damaged recordings."""
    add_damaged_recordings(folder)
    return folder


def traced_instructions(folder: Path) -> int:
    """Return the instructions that the recorder counted."""
    traced = 0
    for _, trace in rtit.open_many(folder):
        assert isinstance(trace, rtit.Trace)
        traced += sum(trace.traced_instructions.values())
    return traced


def run(
    words: Sequence[str | Path], capfdbinary: pytest.CaptureFixture[bytes]
) -> tuple[int, bytes]:
    capfdbinary.readouterr()
    code = main([*map(str, words)])
    return code, capfdbinary.readouterr().out


def test_recordings_of_a_folder_have_the_sum_of_the_calls(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    calls = calls_of_is_prime(COPIES)
    code, out = run([*COMMANDS["coverage"], folder], capfdbinary)
    assert code == 0
    assert f"FNDA:{calls},is_prime".encode() in out.splitlines()
    code, out = run(["calls", "--function", "is_prime", folder], capfdbinary)
    assert code == 0
    assert re.search(rf" {calls}  is_prime$", out.decode(), re.MULTILINE)


def test_bolt_profile_of_recordings_counts_all_calls(
    primes: Path, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    symbols = subprocess.run(["nm", primes], capture_output=True, text=True, check=True).stdout
    [entry] = [line.split()[0] for line in symbols.splitlines() if line.endswith(" is_prime")]
    capfdbinary.readouterr()
    assert main([*COMMANDS["bolt"], str(folder)]) == 0
    out, errors = capfdbinary.readouterr()
    traced = f"{traced_instructions(folder):,}"
    assert f"{traced} of {traced} instructions" in errors.decode()
    rows = [line.split() for line in out.decode().splitlines()]
    counts = [int(row[3]) for row in rows if row[0] == "B" and int(row[2], 16) == int(entry, 16)]
    assert sum(counts) == calls_of_is_prime(COPIES)


def test_profile_of_equal_recordings_has_a_multiple_of_each_count(record: Recorder) -> None:
    with rtit.Trace(record(["/bin/true"]).data) as trace:
        single = rtit.profile.builder.build_profile(trace, trace.by_thread())
    total = ProfileSum()
    for name in ("one", "two", "three"):
        total.add(single, name)
    found = total.profile()
    assert [each.path for each in found.binaries] == [each.path for each in single.binaries]
    for once, three in zip(single.binaries, found.binaries, strict=True):
        for before, after in ((once, three), (once.edges, three.edges)):
            assert after.count.sum() == 3 * before.count.sum()
            assert sorted(after.count.tolist()) == sorted((3 * before.count).tolist())


def test_stat_of_recordings_adds_the_instructions_of_the_recorder(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    traced = traced_instructions(folder)
    _, out = run([*COMMANDS["stat"], folder], capfdbinary)
    counts = json.loads(out)["counts"]
    assert (counts["instructions"], counts["processes"]) == (traced, COPIES)


def test_report_of_recordings_adds_threads_and_functions(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    traced = traced_instructions(folder)
    code, out = run([*COMMANDS["report-json"], folder], capfdbinary)
    found = json.loads(out)
    assert code == 0
    assert found["instructions"] == traced
    assert found["threads"] == {"primes": traced}
    assert len(found["recordings"]) == COPIES
    [calls] = [each["calls"] for each in found["calls"] if each["function"] == "is_prime"]
    assert calls == calls_of_is_prime(COPIES)
    _, out = run([*COMMANDS["report"], folder], capfdbinary)
    assert f"{traced:14,} {COPIES:12,}  primes" in out.decode().splitlines()


def test_report_of_recordings_groups_equal_faults(
    record: Recorder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, program = tmp_path / "crash.c", tmp_path / "crash"
    source.write_text("int main(void) { __builtin_trap(); }")
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    paths = [tmp_path / f"{number}.data" for number in range(3)]
    for path in paths:
        shutil.copy(record([program]).data, path)
    main(["report", *map(str, paths)])
    [line] = [line for line in capfd.readouterr().out.splitlines() if "fault:" in line]
    assert line.startswith("  fault: 3 times SIGILL")
    assert " in main+0x" in line
    assert line.endswith(f", first in {paths[0]}")


@pytest.mark.parametrize("command", COMMANDS)
def test_output_is_the_same_for_any_number_of_jobs(
    command: str, damaged: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def run_with_jobs(jobs: int) -> tuple[int, bytes, bytes]:
        capfdbinary.readouterr()
        code = main([*COMMANDS[command], "--jobs", str(jobs), str(damaged)])
        return code, *capfdbinary.readouterr()

    code, out, errors = run_with_jobs(1)
    assert code == 3
    assert out
    for name in DAMAGED:
        assert name.encode() in errors
    assert b"00.data" not in errors
    assert run_with_jobs(2) == (code, out, errors)


def test_recording_of_a_killed_worker_is_decoded_again(
    folder: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words: list[str | Path] = [*COMMANDS["coverage"], "--jobs", "2", folder]
    expected = run(words, capfdbinary)
    build = rtit.profile.builder.build_profile

    def die_once_and_build(trace: rtit.Trace, streams: Sequence[rtit.trace.Stream]) -> object:
        death = tmp_path / Path(trace.path).name
        if death.name in ("02.data", "03.data") and not death.exists():
            death.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return build(trace, streams)

    monkeypatch.setattr(rtit.profile.builder, "build_profile", die_once_and_build)
    assert run(words, capfdbinary) == expected
    assert (tmp_path / "02.data").exists()
    assert (tmp_path / "03.data").exists()


def test_recording_that_kills_every_worker_is_named(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = rtit.profile.builder.build_profile

    def build_or_die(trace: rtit.Trace, streams: Sequence[rtit.trace.Stream]) -> object:
        if trace.path.endswith("02.data"):
            os.kill(os.getpid(), signal.SIGKILL)
        return build(trace, streams)

    monkeypatch.setattr(rtit.profile.builder, "build_profile", build_or_die)
    assert main([*COMMANDS["stat"], "--jobs", "2", str(folder)]) == 3
    out, errors = capfd.readouterr()
    assert json.loads(out)["counts"]["processes"] == COPIES - 1
    [line] = [line for line in errors.splitlines() if "signal 9" in line]
    assert f"{folder}/02.data: " in line


def export(folder: Path, to: Path, *options: str) -> tuple[int, dict[str, bytes]]:
    code = main(["export", "--to", str(to), *options, str(folder)])
    files = (each for each in to.rglob("*") if each.is_file())
    return code, {str(each.relative_to(to)): each.read_bytes() for each in files}


def test_exported_tables_have_the_counts_of_the_commands(
    damaged: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    query_parquet: ParquetQuery,
) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    tables = tmp_path / "tables"
    assert export(damaged, tables, "--jobs", "2")[0] == 3
    _, out = run([*COMMANDS["stat"], damaged], capfdbinary)
    stat = json.loads(out)
    blocks = f"'{tables}/blocks/*.parquet'"
    by_function = f"select function, sum(instructions) from {blocks} where function is not null"
    found = query_parquet(f"{by_function} group by 1")
    expected = {name.removesuffix(" (primes)"): count for name, count in stat["functions"].items()}
    assert {name: int(count) for name, count in found} == expected
    counts = stat["counts"]
    frame = polars.read_parquet(f"{tables}/blocks/*.parquet")
    assert frame["instructions"].sum() == counts["instructions"]
    assert frame["recording"].n_unique() == COPIES
    edges = polars.read_parquet(f"{tables}/edges/*.parquet")
    conditional = edges.filter(polars.col("kind").is_in(["conditional", "not taken"]))
    assert conditional["count"].sum() == counts["conditional branches"]
    _, out = run([*COMMANDS["report-json"], damaged], capfdbinary)
    calls = {each["function"]: each["calls"] for each in json.loads(out)["calls"]}
    functions = polars.read_parquet(f"{tables}/functions/*.parquet")
    is_prime = functions.filter(polars.col("function") == "is_prime")
    assert is_prime["calls"].sum() == calls["is_prime"] == calls_of_is_prime(COPIES)
    listed = polars.read_parquet(tables / "recordings.parquet")
    problems = listed.filter(polars.col("problem").is_not_null())
    assert sorted(Path(each).name for each in problems["recording"]) == [*DAMAGED]
    assert problems["file"].is_null().sum() == 2


@pytest.mark.slow
def test_exported_files_are_the_same_for_any_number_of_jobs(damaged: Path, tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="DuckDB is not installed")
    code, files = export(damaged, tmp_path / "tables", "--jobs", "1")
    assert code == 3
    assert len(files) == 1 + 7 * (COPIES + 1)
    assert export(damaged, tmp_path / "tables", "--jobs", "2") == (code, files)


def test_ctrl_c_ends_the_command_and_its_workers(folder: Path) -> None:
    os.mkfifo(folder / "pipe")  # no process writes to it, so its reader waits
    command: list[str | Path] = [*RTIT, "coverage", "--jobs", "2", folder / "pipe", folder]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: bool(children.read_text()), "a worker")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert errors.strip() == b""
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_patterns_and_files_name_recordings_as_folders_do(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    expected = run([*COMMANDS["stat"], folder], capfdbinary)
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    assert len(files) == COPIES
    assert run([*COMMANDS["stat"], *files], capfdbinary) == expected
    patterns = [folder / "*.data", folder / "below" / "*"]
    assert run([*COMMANDS["stat"], *patterns], capfdbinary) == expected
    assert run([*COMMANDS["stat"], folder / "**"], capfdbinary) == expected


def test_names_without_a_recording_are_errors(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("missing.data", "*.data"):
        assert main(["coverage", str(tmp_path / name)]) == 1
        assert "no recording at" in capfd.readouterr().err
    (tmp_path / "notes.txt").write_text("text")
    assert main(["coverage", str(tmp_path)]) == 1
    assert "no recording is in this folder" in capfd.readouterr().err
    for name in ("one.data", "two.data"):
        (tmp_path / name).touch()
    assert main(["coverage", str(tmp_path)]) == 1
    errors = capfd.readouterr().err
    assert "one.data: the file is empty" in errors
    assert "none of the 2 recordings could be read" in errors


def test_formats_of_one_recording_refuse_many(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["profile", "--for", "pprof"],
        ["profile", "--for", "perf"],
        ["calls", "--json"],
        ["calls", "--speedscope"],
        ["stat", "--function", "main"],
    ):
        assert main([*words, str(folder)]) == 2
        assert "one recording" in capfd.readouterr().err


def test_open_many_yields_a_trace_or_the_error_of_each_recording(damaged: Path) -> None:
    found = dict(rtit.open_many([damaged], jobs=1))
    assert len(found) == COPIES + 3
    errors = {Path(path).name for path, each in found.items() if isinstance(each, InputError)}
    assert errors == {"broken.data", "empty.data"}
