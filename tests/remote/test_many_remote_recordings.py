"""Folders, patterns and lists of URLs, and commands that add up the recordings they stand for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rtit
from rtit.errors import MissingRecordingError, PerfDataError
from rtit.trace.many_recordings import find_recordings
from support.remote import RangeHandler, RangeServer, RunCommand, StoreFile


@pytest.fixture
def corpus(recording: Path, memory: StoreFile) -> list[str]:
    """Store three recordings, one of them in a folder, and a file that is none; return URLs."""
    content = recording.read_bytes()
    memory("runs/notes.txt", b"text")
    return [memory(f"runs/{name}", content) for name in ("a.data", "b.data", "below/c.data")]


def test_folder_stands_for_the_recordings_below_it(corpus: list[str]) -> None:
    assert find_recordings(["memory://remote/runs"]) == corpus
    assert find_recordings(["memory://remote/runs/"]) == corpus


def test_pattern_stands_for_the_files_that_match(corpus: list[str]) -> None:
    assert find_recordings(["memory://remote/runs/*.data"]) == corpus[:2]
    assert find_recordings(["memory://remote/runs/[b-z].data"]) == corpus[1:2]
    assert find_recordings(["memory://remote/**/*.data"]) == corpus


def test_pattern_in_an_archive_keeps_the_url_of_the_archive(
    recording: Path, tmp_path: Path
) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "runs.zip", "w") as archive:
        archive.write(recording, "below/a.data")
    [name] = find_recordings([f"zip://below/*.data::file://{tmp_path}/runs.zip"])
    assert name == f"zip://below/a.data::file://{tmp_path}/runs.zip"
    with rtit.Trace(name) as remote, rtit.Trace(recording) as local:
        assert remote.command_line == local.command_line


def test_url_of_a_local_file_is_its_path(recording: Path) -> None:
    for scheme in ("file", "local"):
        assert find_recordings([f"{scheme}://{recording}"]) == [str(recording)]
        with rtit.Trace(f"{scheme}://{recording}") as trace:
            assert trace.path == str(recording)


def test_names_without_recordings_are_errors(memory: StoreFile) -> None:
    memory("empty/notes.txt", b"text")
    with pytest.raises(PerfDataError, match="no recording is in this folder"):
        find_recordings(["memory://remote/empty"])
    for name in ("missing.data", "*.data"):
        with pytest.raises(MissingRecordingError, match="no recording at memory://remote/empty"):
            find_recordings([f"memory://remote/empty/{name}"])


def test_pattern_on_a_web_server_is_an_error(server: RangeServer, run: RunCommand) -> None:
    code, _, errors = run(["stat", server.url("/runs/*.data")])
    assert code == 1
    assert b"a web server has no list of its files: name each recording" in errors
    assert find_recordings([f"simplecache::{server.url('/runs')}"]) == [
        f"simplecache::{server.url('/runs')}"
    ]
    assert not server.requests


@pytest.mark.parametrize("command", [["coverage"], ["profile", "--for", "bolt"], ["stat"]])
def test_workers_read_urls(
    command: list[str],
    recording: Path,
    corpus: list[str],
    server: RangeServer,
    run: RunCommand,
) -> None:
    """A worker is forked from this process, and has a copy of its memory://."""
    server.files["/a.data"] = recording.read_bytes()
    expected = run([*command, *[recording] * 4])
    assert expected[0] == 0
    names = [server.url("/a.data"), server.url("/a.data?second"), *corpus[:2]]
    for jobs in (1, 2):
        code, out, errors = run([*command, "--jobs", str(jobs), *names])
        for shown in (server.url("/a.data"), *corpus[:2]):
            out = out.replace(shown.encode(), str(recording).encode())
        assert (code, out) == expected[:2]
        assert re.sub(rb"\S+://\S+", str(recording).encode(), errors) == expected[2]


def test_broken_recording_at_a_url_is_named(
    recording: Path, server: RangeServer, run: RunCommand
) -> None:
    server.files["/a.data"] = recording.read_bytes()
    server.files["/broken.data"] = b"no recording"
    urls = [server.url(f"/{name}") for name in ("a.data", "broken.data", "missing.data")]
    for jobs in ("1", "2"):
        code, out, errors = run(["stat", "--json", "--jobs", jobs, *urls])
        assert code == 3
        assert out
        assert f"{urls[1]} is not a perf.data file".encode() in errors
        assert f"no recording at {urls[2]}".encode() in errors
        assert urls[0].encode() not in errors


def test_open_many_yields_the_trace_or_the_error_of_each_url(
    recording: Path, corpus: list[str], server: RangeServer
) -> None:
    server.files["/broken.data"] = b""
    server.answer = RangeHandler.send_whole_file
    found = dict(rtit.open_many([server.url("/broken.data"), "memory://remote/runs/*.data"]))
    assert [*found] == [server.url("/broken.data"), *corpus[:2]]
    errors = [name for name, each in found.items() if isinstance(each, PerfDataError)]
    assert errors == [server.url("/broken.data")]
