"""The files that a recording writes: whose they are, and that each is one of its own."""

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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("backend", ["qemu", "ptrace"])
def test_only_the_owner_reads_what_was_executed(backend: str, program: ProgramBuilder) -> None:
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
def test_two_files_are_not_one(files: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    Path("x").write_text("older")
    Path("link").symlink_to("x")
    assert main(["record", "-q", "--backend", "ptrace", *files, "--", "true"]) == 2
    assert "would be one file" in capfd.readouterr().err
    assert Path("x").read_text() == "older"


def test_a_device_may_be_several(program: ProgramBuilder) -> None:
    null = "/dev/null"
    words = ["--backend", "ptrace", "--truth", null, "--events", null, "--json", null]
    assert main(["record", "-q", *words, "--", str(program("endings"))]) == 3


def test_a_filter_on_what_is_no_elf_file(capfd: pytest.CaptureFixture[str]) -> None:
    """Our own failure to record, not the program's exit code."""
    Path("text").write_text("no program")
    words = ["--backend", "ptrace", "--filter", "filter main @ text"]
    assert main(["record", "-q", *words, "--", "true"]) == 125
    said = capfd.readouterr().err
    assert "text" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("backend", ["qemu", "ptrace"])
@pytest.mark.parametrize("bad", ["no/truth", "nowhere"])
def test_what_does_not_start_leaves_everything_as_it_was(
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
def test_a_link_to_nothing_is_not_followed(
    option: str, program: ProgramBuilder, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor is the program run then."""
    Path("link").symlink_to("elsewhere")
    words = ["--backend", "ptrace", option, "link", "--", str(program("endings"))]
    assert main(["record", "-q", *words]) == 125
    assert "link: it is a dangling symbolic link" in capfd.readouterr().err
    assert [each.name for each in Path.cwd().iterdir()] == ["link"]


@pytest.mark.parametrize("option", ["--events", "--json"])
def test_a_link_to_a_file_is(option: str, program: ProgramBuilder) -> None:
    Path("file").write_text("older" * 100_000)
    Path("link").symlink_to("file")
    words = ["--backend", "ptrace", option, "link", "--", str(program("endings"))]
    assert main(["record", "-q", *words]) == 3
    assert Path("link").is_symlink()
    assert b"older" not in Path("file").read_bytes()


@pytest.mark.parametrize("option", ["--events", "--json"])
def test_one_that_cannot_be_written_is_known_before_the_program_runs(
    option: str, program: ProgramBuilder
) -> None:
    words = ["--backend", "ptrace", option, "no/file", "--", "/bin/sh", "-c", ": >ran"]
    assert main(["record", "-q", *words]) == 125
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("option", ["--events", "--json"])
@pytest.mark.parametrize("older", [None, "older"])
def test_what_is_not_written_stays(option: str, older: str | None) -> None:
    """The program is not there."""
    if older is not None:
        Path("file").write_text(older)
    assert main(["record", "-q", "--backend", "ptrace", option, "file", "--", "/no/program"]) == 127
    assert Path("file").exists() == (older is not None)
    assert older is None or Path("file").read_text() == older


def test_one_that_starts_keeps_the_last_alone(program: ProgramBuilder) -> None:
    Path("perf.data").write_text("last")
    Path("perf.data.old").write_text("older")
    assert main(["record", "-q", "--backend", "ptrace", "--", str(program("endings"))]) == 3
    assert sorted(each.name for each in Path.cwd().iterdir()) == ["perf.data", "perf.data.old"]
    assert Path("perf.data.old").read_text() == "last"


def test_a_link_to_nothing_is_moved_aside(program: ProgramBuilder) -> None:
    Path("perf.data").symlink_to("elsewhere")
    assert main(["record", "-q", "--backend", "ptrace", "--", str(program("endings"))]) == 3
    assert not Path("elsewhere").exists()
    assert Path("perf.data").is_file()
    assert not Path("perf.data").is_symlink()
    assert Path("perf.data.old").is_symlink()
