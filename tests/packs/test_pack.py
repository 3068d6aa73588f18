"""A pack gives the results of the recording after all executed files are deleted."""

from __future__ import annotations

import gc
import shutil
import stat
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import rtit
from programs.build import SOURCES
from rtit.cli.commands import COMMANDS
from rtit.cli.main import main
from rtit.errors import ImageError
from rtit.image import mapped_files as image_files
from rtit.trace.recording import packs
from support.recordings import RTIT

ProgramBuilder = Callable[[str], Path]
# Subcommands that open no recording; gdb, which prints the paths of its files; annotate and view,
# which show source files, of which a pack has none; and those that need DuckDB.
NO_READERS = {"record", "scenario", "msr", "cpuid", "doctor", "gdb"}
NO_READERS |= {"annotate", "view", "query", "export"}
READERS = {
    "info": [],
    "report": [],
    "calls": [],
    "timeline": ["--for", "chrome"],
    "packets": [],
    "instructions": ["--fields", "tid,ip,sym,dso,asm"],
    "blocks": [],
    "branches": [],
    "edges": [],
    "profile": ["--for", "callgrind", "--dso", "all"],
    "stat": ["--per", "function"],
    "verify": ["--truth", "truth"],
    "coverage": ["--format", "lcov"],
    "diff": [],
    "convert": ["--split", "split"],
    "events": [],
    "lint": [],
    "pack": ["-o", "again.rtit.zip"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a stripped program, with its truth and a separate debug file; its source is at the
    DWARF's path.
    """
    for name in ("gcc", "objcopy"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp("pack")
    shutil.copy(SOURCES / "start.h", folder)
    shutil.copy(SOURCES / "recursion.c", folder / "source.c")
    for command in (
        "gcc -g -O1 -static -nostdlib -o program source.c",
        "objcopy --only-keep-debug program program.debug",
        "objcopy --strip-all --add-gnu-debuglink=program.debug program",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    options = ["--backend", "ptrace", "--truth", "truth", "-q", "--", str(folder / "program")]
    subprocess.run([*RTIT, "record", *options], cwd=folder, check=False, capture_output=True)
    return folder


def run_all_subcommands(
    folder: Path, location: Path, file: str, capfd: pytest.CaptureFixture[str]
) -> dict[str, tuple[int, str, str]]:
    """Return exit code, output and errors of every reading subcommand, without the recording's
    name.
    """
    found = {}
    for verb, options in READERS.items():
        words = [str(folder / "truth") if word == "truth" else word for word in options]
        more = [file] if verb == "diff" else []
        code = main([verb, file, *more, *words])
        said = capfd.readouterr()
        assert code == 0, (verb, said.err)
        found[verb] = (code, said.out.replace(file, "FILE"), said.err.replace(file, "FILE"))
    for path in sorted((location / "split").iterdir()):
        found[path.name] = (0, path.read_bytes().hex(), "")
    return found


def test_every_reading_subcommand_is_tested() -> None:
    assert set(READERS) == set(COMMANDS) - NO_READERS


def test_every_subcommand_has_the_same_output(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    shutil.copy2(folder / "perf.data", here)
    before = run_all_subcommands(folder, here, "perf.data", capfd)
    assert "source.c" in before["coverage"][1]
    assert " even (program)" in before["report"][1]
    assert main(["pack", "perf.data"]) == 0
    assert "1 files, 1 debug files" in capfd.readouterr().out
    assert stat.S_IMODE((here / "perf.data.rtit.zip").stat().st_mode) == 0o600
    assert main(["pack", "perf.data", "-o", "-"]) == 2
    capfd.readouterr()
    shutil.move(here / "perf.data.rtit.zip", there / "perf.data")
    # another machine: no file of this one is read
    gone = folder / "gone"
    gone.mkdir(exist_ok=True)
    names = ("program", "program.debug", "source.c")
    for name in names:
        (folder / name).rename(gone / name)
    shutil.rmtree(here)
    monkeypatch.chdir(there)
    opened = image_files._open_candidate_file

    def only_packed(path: str, real: str, kept: object) -> object:
        assert "rtit-pack-" in real
        return opened(path, real, kept)  # type: ignore[arg-type]

    monkeypatch.setattr(image_files, "_open_candidate_file", only_packed)
    try:
        after = run_all_subcommands(folder, there, "perf.data", capfd)
    finally:
        for name in names:
            (gone / name).rename(folder / name)
    assert after.keys() == before.keys()
    for verb, answer in before.items():
        assert after[verb] == answer, verb


def test_packing_standard_input_requires_an_output_name(folder: Path, tmp_path: Path) -> None:
    def packed(*words: str) -> tuple[int, str]:
        with (folder / "perf.data").open("rb") as data:
            command = [*RTIT, "pack", "-", *words]
            ended = subprocess.run(
                command, stdin=data, cwd=tmp_path, capture_output=True, text=True, check=False
            )
        return ended.returncode, ended.stderr

    code, err = packed()
    assert code == 2
    assert err.startswith("rtit pack: <stdin> is not a local file: give -o FILE\n")
    assert list(tmp_path.iterdir()) == []
    assert packed("-o", "out") == (0, "")
    assert zipfile.is_zipfile(tmp_path / "out")


def test_same_trace_gives_the_same_pack(folder: Path, tmp_path: Path) -> None:
    """A pack of a pack is the same, too."""
    first, second, third = (str(tmp_path / name) for name in ("1", "2", "3"))
    assert main(["pack", str(folder / "perf.data"), "-o", first]) == 0
    assert main(["pack", str(folder / "perf.data"), "-o", second]) == 0
    assert main(["pack", first, "-o", third]) == 0
    assert Path(first).read_bytes() == Path(second).read_bytes() == Path(third).read_bytes()


def test_pack_has_manifest_and_unchanged_files(folder: Path, tmp_path: Path) -> None:
    """The manifest has recorded paths and build ids."""
    output = tmp_path / "out"
    assert main(["pack", str(folder / "perf.data"), "-o", str(output)]) == 0
    with zipfile.ZipFile(output) as archive:
        contents = packs.PackManifest.decode(archive.read(packs.MANIFEST))
        [kept] = [each for key, each in contents.files.items() if key[0] == str(folder / "program")]
        assert kept.file is not None
        assert kept.debug is not None
        assert archive.read(kept.file) == (folder / "program").read_bytes()
        assert archive.read(kept.debug) == (folder / "program.debug").read_bytes()
        assert archive.read("recording/perf.data") == (folder / "perf.data").read_bytes()
        assert archive.testzip() is None
    with rtit.Trace(output) as trace, rtit.Trace(folder / "perf.data") as before:
        assert trace.data.build_ids == before.data.build_ids


def test_temporary_files_are_removed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    assert main(["pack", str(folder / "perf.data"), "-o", str(output)]) == 0
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    trace = rtit.Trace(output)
    assert trace.streams[0].counts().instructions > 0
    [unpacked] = (tmp_path / "temporary").iterdir()
    assert unpacked.stat().st_mode & 0o077 == 0
    trace.close()
    # cached values stay available, also those read late
    symbols = trace.images.files.symbols(str(folder / "program"))
    del trace
    gc.collect()
    assert symbols is not None
    assert any(symbols.native.source_lines()[4])
    del symbols
    gc.collect()
    assert not unpacked.exists()
    with output.open("rb") as file, rtit.Trace(file) as trace:
        assert trace.streams[0].counts().instructions > 0
    del trace
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("how", ["missing", "changed", "truncated"])
def test_missing_file_is_missing_in_the_pack(
    how: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same message and exit code 3, though the right file exists at the recorded path."""
    program = folder / "program"
    good = folder / "good"
    program.rename(good)
    try:
        if how == "changed":
            shutil.copy("/bin/true", program)
        elif how == "truncated":
            program.write_bytes(good.read_bytes()[:4096])
        assert main(["report", str(folder / "perf.data")]) == 3
        before = capfd.readouterr()
        output = str(tmp_path / "perf.data")
        assert main(["pack", str(folder / "perf.data"), "-o", output]) == 3
        assert "files are missing" in capfd.readouterr().out or how == "truncated"
    finally:
        program.unlink(missing_ok=True)
        good.rename(program)
    assert main(["report", output]) == 3
    after = capfd.readouterr()
    assert after.out.replace(output, "") == before.out.replace(str(folder / "perf.data"), "")
    # files given by the user take precedence over the pack
    assert main(["report", output, "--map", f"{program}={program}2"]) == 3
    shutil.copy(program, tmp_path / "program")
    assert main(["report", output, "--map", f"{program}={tmp_path / 'program'}"]) == 0


def test_perf_directory_is_packed(folder: Path, tmp_path: Path) -> None:
    """The data file, and perf's files one level below; no links."""
    recording = tmp_path / "perf.data"
    (recording / "kcore_dir").mkdir(parents=True)
    shutil.copy(folder / "perf.data", recording / "data")
    (recording / "kcore_dir" / "kallsyms").write_text("0 T nothing\n")
    (recording / "link").symlink_to("/etc/passwd")
    (recording / "data.0").touch()
    output = tmp_path / "out"
    assert main(["pack", str(recording), "-o", str(output)]) == 0
    with zipfile.ZipFile(output) as archive:
        names = [name for name in archive.namelist() if name.startswith("recording/")]
    assert names == ["recording/data", "recording/data.0", "recording/kcore_dir/kallsyms"]
    with rtit.Trace(output) as trace, rtit.Trace(folder / "perf.data") as before:
        assert trace.data.folder is not None
        assert (Path(trace.data.folder) / "kcore_dir" / "kallsyms").read_text() == "0 T nothing\n"
        assert trace.streams[0].counts() == before.streams[0].counts()


def test_highly_compressible_file_is_stored_uncompressed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A written pack can be read: writing uses the limits of reading."""
    monkeypatch.setattr("rtit.trace.recording.packs.MIN_SIZE_LIMIT", 0)
    monkeypatch.setattr("rtit.trace.recording.pack_writer.MIN_SIZE_LIMIT", 0)
    recording = tmp_path / "perf.data"
    recording.mkdir()
    shutil.copy(folder / "perf.data", recording / "data")
    (recording / "zeros").write_bytes(bytes(1 << 22))
    output = tmp_path / "out"
    assert main(["pack", str(recording), "-o", str(output)]) == 0
    with zipfile.ZipFile(output) as archive:
        assert archive.getinfo("recording/zeros").compress_type == zipfile.ZIP_STORED
        assert archive.getinfo("recording/data").compress_type == zipfile.ZIP_DEFLATED
    with rtit.Trace(output) as trace:
        assert trace.streams[0].counts().instructions > 0


def test_failed_write_keeps_the_old_pack(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    output.write_text("older")

    def fail(*_: object) -> None:
        raise ImageError("no", source="x")

    monkeypatch.setattr("rtit.trace.recording.packs.PackManifest.encode_manifest", fail)
    assert main(["pack", str(folder / "perf.data"), "-o", str(output)]) == 1
    assert output.read_text() == "older"
    assert list(tmp_path.iterdir()) == [output]
