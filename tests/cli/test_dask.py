"""Many recordings on a Dask cluster of two workers: the results are those of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import rtit
import rtit.worker_processes
from rtit.cli.main import main
from rtit.cli.measure import stat
from rtit.coverage import corpus_coverage
from rtit.packets import encode
from support.many_recordings import COMMANDS, DAMAGED, add_damaged_recordings, copy_recordings
from support.recordings import Recorder
from support.streams import SYNC

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
cloudpickle = pytest.importorskip("cloudpickle")

COPIES = 200
CLUSTER = """
import select
import subprocess
import sys
import dask
from distributed import LocalCluster

WORKER = "-m distributed.cli.dask_worker --no-nanny --nthreads 1 --no-dashboard".split()

if __name__ == "__main__":
    dask.config.set({"distributed.scheduler.allowed-failures": 1})
    with LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        command = [sys.executable, *WORKER, cluster.scheduler_address]
        workers = [subprocess.Popen(command), subprocess.Popen(command)]
        print(cluster.scheduler_address, flush=True)
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            for at, worker in enumerate(workers):
                if worker.poll() is not None:
                    workers[at] = subprocess.Popen(command)
        for worker in workers:
            worker.kill()
            worker.wait()
"""
"""Starts a new worker when one ends, until standard input is closed."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of the scheduler of a cluster of two worker processes."""
    folder = tmp_path_factory.mktemp("cluster")
    script = folder / "cluster.py"
    script.write_text(CLUSTER)
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, script],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, (folder / "log").read_text()
        yield address


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


@pytest.fixture(scope="module")
def folder(primes: Path, record: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 200 recordings, and a broken, an empty and a truncated one."""
    folder = tmp_path_factory.mktemp("runs") / "runs"
    copy_recordings(folder, COPIES, record, primes)
    add_damaged_recordings(folder)
    return folder


def run(
    words: Sequence[object], capfdbinary: pytest.CaptureFixture[bytes]
) -> tuple[int, bytes, bytes]:
    capfdbinary.readouterr()
    code = main([*map(str, words)])
    return code, *capfdbinary.readouterr()


@pytest.mark.slow
def test_sums_are_those_of_one_process_if_a_worker_is_killed(
    client: Any,
    address: str,
    folder: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = run([*COMMANDS["stat"], "--jobs", "1", folder], capfdbinary)
    code, out, errors = expected
    assert code == 3
    assert out
    for name in DAMAGED:
        [line] = [line for line in errors.splitlines() if name.encode() in line]
        assert line.startswith(b"rtit stat: missing: ")
    finish, count = rtit.worker_processes._result_of_task, 0

    def finish_and_kill_a_worker(future: Any) -> object:
        nonlocal count
        count += 1
        if count == COPIES // 2:
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        return finish(future)

    monkeypatch.setattr(rtit.worker_processes, "_result_of_task", finish_and_kill_a_worker)
    assert run([*COMMANDS["stat"], "--dask", address, folder], capfdbinary) == expected
    assert count == COPIES + len(DAMAGED)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_prints_the_same_on_a_cluster(
    command: str, address: str, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    words: list[object] = [*COMMANDS[command]]
    words += [*sorted(folder.glob("?2.data")), *map(folder.joinpath, DAMAGED)]
    expected = run([*words, "--jobs", "1"], capfdbinary)
    assert expected[0] == 3
    assert run([*words, "--dask", address], capfdbinary) == expected


def test_exported_files_are_the_same_on_a_cluster(
    address: str, folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("duckdb", reason="DuckDB is not installed")
    paths = [str(folder / name) for name in ("00.data", "02.data", *DAMAGED)]

    def export(*options: str) -> dict[str, bytes]:
        to = tmp_path / "tables"
        assert main(["export", "--to", str(to), *options, *paths]) == 3
        files = (each for each in to.rglob("*") if each.is_file())
        return {str(each.relative_to(to)): each.read_bytes() for each in files}

    assert export("--dask", address) == export("--jobs", "1")


def test_recording_that_kills_its_workers_is_named(
    client: Any,
    address: str,
    folder: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = sorted(folder.glob("?2.data"))
    expected = run([*COMMANDS["stat"], "--jobs", "1", *files], capfdbinary)
    deadly = tmp_path / "deadly.data"
    deadly.write_bytes(files[0].read_bytes())

    def count_or_die(arguments: Namespace, matched: set[str]) -> object:
        if arguments.file.endswith("deadly.data"):
            os.kill(os.getpid(), signal.SIGKILL)
        return stat._count_recording(arguments, matched)

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(stat, "_count_recording", count_or_die)
    words = [*COMMANDS["stat"], files[0], deadly, *files[1:], "--dask", address]
    code, out, errors = run(words, capfdbinary)
    assert code == 3
    for each in ("counts", "functions"):
        assert json.loads(out)[each] == json.loads(expected[1])[each]
    assert f"{deadly}: the workers that decoded it died".encode() in errors


def test_map_many_returns_the_same_with_a_client(client: Any, folder: Path) -> None:
    function = attrgetter("traced_instructions")
    alone, together = (
        [
            (path, str(found) if isinstance(found, rtit.RtitError) else found)
            for path, found in rtit.map_many(function, folder, **options)
        ]
        for options in ({"jobs": 1}, {"client": client})
    )
    assert len(alone) == COPIES + len(DAMAGED)
    assert together == alone
    errors = {Path(path).name for path, found in alone if isinstance(found, str)}
    assert errors == {"broken.data", "empty.data"}


def test_corpus_has_the_same_coverage_with_a_client(client: Any) -> None:
    def image() -> rtit.Image:
        return rtit.Image().add(0x1000, bytes.fromhex("740190") * 20)

    traces = [
        SYNC + encode("TNT", bits=f"{number:06b}".replace("0", "N").replace("1", "T"))
        for number in range(64)
    ]
    alone = corpus_coverage(traces, image, jobs=1)
    together = corpus_coverage(traces, image, client=client)
    for table in ("traces", "edges"):
        first, second = (getattr(each, table).columns() for each in (alone, together))
        assert {name: column.tolist() for name, column in first.items()} == {
            name: column.tolist() for name, column in second.items()
        }
    assert len(alone.edges) == 12
    with pytest.raises(rtit.UsageError, match="must be a function"):
        corpus_coverage(traces, image(), client=client)


def test_wrong_uses_of_a_cluster_are_errors(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rtit.worker_processes, "_CONNECT_SECONDS", 1)
    for words, message in (
        (["--jobs", "2"], "--jobs and --dask cannot be combined"),
        (["-"], "--dask cannot send standard input"),
        ([], "cannot connect to a Dask scheduler at tcp://127.0.0.1:1: "),
    ):
        command = ["stat", str(folder), *words, "--dask", "tcp://127.0.0.1:1"]
        assert main(command) == 2
        assert message in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["stat", str(folder), "--dask", "tcp://127.0.0.1:1"]) == 1
    errors = capfd.readouterr().err
    assert errors == "rtit stat: Dask is not installed: pip install 'rtit[dask]'\n"
