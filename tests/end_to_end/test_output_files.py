"""The files that `rtit record` writes: permissions, links, and older files at their paths."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rtit.cli.main import main
from support.recordings import require_backend

ProgramBuilder = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("backend", ["qemu", "ptrace"])
def test_output_files_are_readable_by_the_owner_only(backend: str, program: ProgramBuilder) -> None:
    require_backend(backend)
    files = ["-o", "data", "--truth", "truth"]
    files += ["--events", "events"] if backend == "ptrace" else []
    exe = str(program("endings"))
    assert main(["record", "-q", "--backend", backend, *files, "--", exe]) == 3
    modes = {name: stat.S_IMODE(Path(name).stat().st_mode) for name in files[1::2]}
    assert modes == dict.fromkeys(files[1::2], 0o600)


@pytest.mark.parametrize(
    "files",
    [
        ["--truth", "perf.data"],
        ["-o", "x", "--truth", "./x"],
        ["--truth", "x", "--events", "x"],
        ["-o", "x", "--json", "link"],
    ],
    ids=" ".join,
)
def test_one_file_for_two_outputs_is_a_usage_error(
    files: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    Path("x").write_text("older")
    Path("link").symlink_to("x")
    assert main(["record", "-q", "--backend", "ptrace", *files, "--", "true"]) == 2
    assert "would be the same file" in capfd.readouterr().err
    assert Path("x").read_text() == "older"


def test_one_device_may_take_several_outputs(program: ProgramBuilder) -> None:
    null = "/dev/null"
    words = ["--backend", "ptrace", "--truth", null, "--events", null, "--json", null]
    assert main(["record", "-q", *words, "--", str(program("endings"))]) == 3


def test_filter_on_non_elf_file_exits_125(capfd: pytest.CaptureFixture[str]) -> None:
    """125 means that rtit failed to record, as opposed to an exit code of the program."""
    Path("text").write_text("no program")
    words = ["--backend", "ptrace", "--filter", "filter main @ text"]
    assert main(["record", "-q", *words, "--", "true"]) == 125
    said = capfd.readouterr().err
    assert "text" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("backend", ["qemu", "ptrace"])
@pytest.mark.parametrize("bad", ["no/truth", "nowhere"])
def test_recording_that_cannot_start_changes_no_file(
    backend: str, bad: str, program: ProgramBuilder, capfd: pytest.CaptureFixture[str]
) -> None:
    require_backend(backend)
    Path("perf.data").write_text("last")
    Path("perf.data.old").write_text("older")
    Path("nowhere").symlink_to("not-there")
    before = sorted(each.name for each in Path.cwd().iterdir())
    exe = str(program("endings"))
    assert main(["record", "-q", "--backend", backend, "--truth", bad, "--", exe]) == 125
    assert bad in capfd.readouterr().err
    assert sorted(each.name for each in Path.cwd().iterdir()) == before
    assert Path("perf.data").read_text() == "last"
    assert Path("perf.data.old").read_text() == "older"


@pytest.mark.parametrize("option", ["--truth", "--events", "--json"])
def test_dangling_link_is_an_error_before_the_program_runs(
    option: str, program: ProgramBuilder, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("link").symlink_to("elsewhere")
    words = ["--backend", "ptrace", option, "link", "--", str(program("endings"))]
    assert main(["record", "-q", *words]) == 125
    assert "link: it is a dangling symbolic link" in capfd.readouterr().err
    assert [each.name for each in Path.cwd().iterdir()] == ["link"]


@pytest.mark.parametrize("option", ["--events", "--json"])
def test_link_to_a_file_is_followed(option: str, program: ProgramBuilder) -> None:
    Path("file").write_text("older" * 100_000)
    Path("link").symlink_to("file")
    words = ["--backend", "ptrace", option, "link", "--", str(program("endings"))]
    assert main(["record", "-q", *words]) == 3
    assert Path("link").is_symlink()
    assert b"older" not in Path("file").read_bytes()


@pytest.mark.parametrize("option", ["--events", "--json"])
def test_unwritable_output_is_an_error_before_the_program_runs(
    option: str, program: ProgramBuilder
) -> None:
    words = ["--backend", "ptrace", option, "no/file", "--", "/bin/sh", "-c", ": >ran"]
    assert main(["record", "-q", *words]) == 125
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("option", ["--events", "--json"])
@pytest.mark.parametrize("older", [None, "older"])
def test_nonexistent_program_leaves_output_files_unchanged(option: str, older: str | None) -> None:
    if older is not None:
        Path("file").write_text(older)
    assert main(["record", "-q", "--backend", "ptrace", option, "file", "--", "/no/program"]) == 127
    assert Path("file").exists() == (older is not None)
    assert older is None or Path("file").read_text() == older


def test_new_recording_keeps_one_older_recording(program: ProgramBuilder) -> None:
    Path("perf.data").write_text("last")
    Path("perf.data.old").write_text("older")
    assert main(["record", "-q", "--backend", "ptrace", "--", str(program("endings"))]) == 3
    assert sorted(each.name for each in Path.cwd().iterdir()) == ["perf.data", "perf.data.old"]
    assert Path("perf.data.old").read_text() == "last"


def test_dangling_link_at_perf_data_is_moved_aside(program: ProgramBuilder) -> None:
    Path("perf.data").symlink_to("elsewhere")
    assert main(["record", "-q", "--backend", "ptrace", "--", str(program("endings"))]) == 3
    assert not Path("elsewhere").exists()
    assert Path("perf.data").is_file()
    assert not Path("perf.data").is_symlink()
    assert Path("perf.data.old").is_symlink()
