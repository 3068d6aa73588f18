"""A command writes an output file completely or not at all."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rtit.capture.output_files import NamedFile, ReservedOutput
from rtit.cli.main import main
from rtit.cli.output import write_file_or_stdout
from support.recordings import RTIT, Recorder


def _failing_chunks() -> Iterator[bytes]:
    yield b"half"
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("old_content", [None, b"what was there"])
def test_failure_midway_keeps_the_old_file(tmp_path: Path, old_content: bytes | None) -> None:
    target = tmp_path / "out"
    if old_content is not None:
        target.write_bytes(old_content)
    with pytest.raises(OSError, match="No space"):
        write_file_or_stdout(str(target), _failing_chunks())
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == (
        {} if old_content is None else {"out": old_content}
    )


def test_write_keeps_permissions_and_links(tmp_path: Path) -> None:
    target, link = tmp_path / "out", tmp_path / "link"
    target.write_bytes(b"a longer old content")
    target.chmod(0o640)
    link.symlink_to(target)
    write_file_or_stdout(str(link), [b"new", b"er"])
    assert link.is_symlink()
    assert target.read_bytes() == b"newer"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_write_to_a_device_does_not_replace_it(tmp_path: Path) -> None:
    write_file_or_stdout("/dev/null", [b"gone"])
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    kept = tmp_path / "kept"
    with kept.open("wb") as file:
        inode = kept.stat().st_ino
        write_file_or_stdout(f"/dev/fd/{file.fileno()}", [b"there"])
    assert kept.stat().st_ino == inode
    assert kept.read_bytes() == b"there"


def test_error_names_the_unwritable_file(tmp_path: Path) -> None:
    none = os.fspath(tmp_path / "none" / "out")
    for output, error in ((none, FileNotFoundError), ("/dev/full", OSError)):
        with pytest.raises(error) as raised:
            write_file_or_stdout(output, [b"there"])
        assert raised.value.filename == output


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (32, 32))


@pytest.mark.parametrize("old_content", [None, b"before"])
@pytest.mark.parametrize(
    "words",
    [
        "pack {data} -o",
        "stat {data} -o",
        *(f"calls {{data}} {each} -o" for each in ("--folded", "--flamegraph", "--speedscope")),
        *(f"profile {{data}} --for {tool} -o" for tool in ("callgrind", "pprof", "perf")),
        *(f"coverage {{data}} --format {each} -o" for each in ("text", "html", "afl")),
        "convert --raw {packets} --maps {maps} -o",
        "scenario acm --raw",
    ],
)
def test_full_disk_gives_one_error_line_and_keeps_the_old_file(
    words: str, old_content: bytes | None, recursion_files: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "out"
    if old_content is not None:
        target.write_bytes(old_content)
    arguments = words.format(**recursion_files).split()
    # the limit would also truncate Python's bytecode files
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def error_output(output: str) -> str:
        ended = subprocess.run(
            [*RTIT, *arguments, output],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
            preexec_fn=_limit_file_size,
        )
        assert ended.returncode == 1
        # Messages in brackets are no errors.
        return "".join(line for line in ended.stderr.splitlines(True) if not line.startswith("["))

    prefix = f"rtit {arguments[0]}: " + ("cannot write " if arguments[0] == "convert" else "")
    assert error_output("out") == f"{prefix}out: File too large\n"
    assert error_output("/dev/full") == f"{prefix}/dev/full: No space left on device\n"
    assert [each.name for each in tmp_path.iterdir()] == ([] if old_content is None else ["out"])
    assert old_content is None or target.read_bytes() == old_content


@pytest.fixture(scope="module")
def recursion_files(
    record: Recorder, program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A recording, and the same recording as raw PT with its maps."""
    data, folder = record([program("recursion")]).data, tmp_path_factory.mktemp("split")
    subprocess.run([*RTIT, "convert", data, "--split", folder], capture_output=True, check=True)
    (packets,), (maps,) = folder.glob("*.pt"), folder.glob("*.maps")
    return {"data": data, "packets": packets, "maps": maps}


def test_full_disk_leaves_no_split_files(recursion_files: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "split"
    ended = subprocess.run(
        [*RTIT, "convert", recursion_files["data"], "--split", folder],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=_limit_file_size,
    )
    name = folder / recursion_files["packets"].name
    assert (ended.returncode, ended.stderr) == (1, f"rtit convert: {name}: File too large\n")
    assert list(folder.iterdir()) == []


def test_reserved_output_is_complete_or_empty(tmp_path: Path) -> None:
    """After a failure, a new file is removed, and an old one is empty."""
    for old_content, after in ((None, None), (b"before", b"")):
        target = tmp_path / "out"
        if old_content is not None:
            target.write_bytes(old_content)
        with (
            pytest.raises(OSError, match="No space"),
            ReservedOutput(target) as reserved,
            reserved.open_for_writing() as file,
        ):
            file.writelines(_failing_chunks())
        assert (target.read_bytes() if target.exists() else None) == after
    with (
        pytest.raises(OSError, match="No space") as raised,
        ReservedOutput("/dev/full") as reserved,
        reserved.open_for_writing() as file,
    ):
        file.write(b"there")
    assert raised.value.filename == "/dev/full"


def test_named_file_writes_everything_or_raises(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with NamedFile(writer, "a pipe") as file, os.fdopen(reader, "rb") as other:
        assert file.write(bytes(range(10))) == 10
        assert other.read(10) == bytes(range(10))
        with pytest.raises(BlockingIOError) as raised:
            file.write(bytes(1 << 24))
        assert raised.value.filename == "a pipe"


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["report", "--help"]])
def test_help_that_cannot_be_written_is_an_error(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*RTIT, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, "rtit: No space left on device\n")


def test_output_never_replaces_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "other.data"
    recording.write_bytes(b"PERFILE2" + bytes(96))
    assert main(["scenario", "cr3_filter", "--html", str(recording)]) == 2
    assert "is a recording and is not replaced" in capsys.readouterr().err
    assert recording.read_bytes().startswith(b"PERFILE2")
