"""What a verb writes into a file is there whole or not at all."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rtit.capture.named_file import NamedFile
from rtit.capture.private_files import ReservedOutput
from rtit.cli.output_file import write
from support.recordings import RTIT, Recorder


def _broken() -> Iterator[bytes]:
    yield b"half"
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_failure_half_way_leaves_what_was_there(tmp_path: Path, before: bytes | None) -> None:
    target = tmp_path / "out"
    if before is not None:
        target.write_bytes(before)
    with pytest.raises(OSError, match="No space"):
        write(str(target), _broken())
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == (
        {} if before is None else {"out": before}
    )


def test_a_file_keeps_its_permissions_and_a_link_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "out", tmp_path / "link"
    target.write_bytes(b"a longer old content")
    target.chmod(0o640)
    link.symlink_to(target)
    write(str(link), [b"new", b"er"])
    assert link.is_symlink()
    assert target.read_bytes() == b"newer"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_device_is_written_to(tmp_path: Path) -> None:
    write("/dev/null", [b"gone"])
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    kept = tmp_path / "kept"
    with kept.open("wb") as file:
        inode = kept.stat().st_ino
        write(f"/dev/fd/{file.fileno()}", [b"there"])
    assert kept.stat().st_ino == inode
    assert kept.read_bytes() == b"there"


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    none = os.fspath(tmp_path / "none" / "out")
    for output, error in ((none, FileNotFoundError), ("/dev/full", OSError)):
        with pytest.raises(error) as raised:
            write(output, [b"there"])
        assert raised.value.filename == output


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (32, 32))


@pytest.mark.parametrize("before", [None, b"before"])
@pytest.mark.parametrize(
    "words",
    [
        "pack {data} -o",
        "stat {data} -o",
        *(f"profile {{data}} --for {tool} -o" for tool in ("callgrind", "pprof", "perf")),
        *(f"coverage {{data}} --format {each} -o" for each in ("text", "html", "afl")),
        "convert --raw {packets} --maps {maps} -o",
        "scenario acm --raw",
    ],
)
def test_a_full_disk_is_an_error_of_one_line(
    words: str, before: bytes | None, recursion: dict[str, Path], tmp_path: Path
) -> None:
    """And leaves what was there."""
    target = tmp_path / "out"
    if before is not None:
        target.write_bytes(before)
    asked = words.format(**recursion).split()
    # nor would Python's files of bytecode be whole
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def told(output: str) -> str:
        ended = subprocess.run(
            [*RTIT, *asked, output],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
            preexec_fn=_limited,
        )
        assert ended.returncode == 1
        return ended.stderr

    cannot = f"rtit {asked[0]}: " + ("cannot write " if asked[0] == "convert" else "")
    assert told("out") == f"{cannot}out: File too large\n"
    assert told("/dev/full") == f"{cannot}/dev/full: No space left on device\n"
    assert [each.name for each in tmp_path.iterdir()] == ([] if before is None else ["out"])
    assert before is None or target.read_bytes() == before


@pytest.fixture(scope="module")
def recursion(
    record: Recorder, program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A recording, and the same as bare PT with its maps."""
    data, folder = record([program("recursion")]).data, tmp_path_factory.mktemp("split")
    subprocess.run([*RTIT, "convert", data, "--split", folder], capture_output=True, check=True)
    (packets,), (maps,) = folder.glob("*.pt"), folder.glob("*.maps")
    return {"data": data, "packets": packets, "maps": maps}


def test_packets_that_cannot_be_split_off_are_not_there(
    recursion: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "split"
    ended = subprocess.run(
        [*RTIT, "convert", recursion["data"], "--split", folder],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=_limited,
    )
    name = folder / recursion["packets"].name
    assert (ended.returncode, ended.stderr) == (1, f"rtit convert: {name}: File too large\n")
    assert list(folder.iterdir()) == []


def test_what_is_reserved_is_whole_or_empty(tmp_path: Path) -> None:
    """A file that is new goes again, what was in another one was not to stay."""
    for before, after in ((None, None), (b"before", b"")):
        target = tmp_path / "out"
        if before is not None:
            target.write_bytes(before)
        with (
            pytest.raises(OSError, match="No space"),
            ReservedOutput(target) as reserved,
            reserved.open_for_writing() as file,
        ):
            file.writelines(_broken())
        assert (target.read_bytes() if target.exists() else None) == after
    with (
        pytest.raises(OSError, match="No space") as raised,
        ReservedOutput("/dev/full") as reserved,
        reserved.open_for_writing() as file,
    ):
        file.write(b"there")
    assert raised.value.filename == "/dev/full"


def test_a_named_file_takes_all_or_says_so(tmp_path: Path) -> None:
    there, here = os.pipe()
    os.set_blocking(here, False)
    with NamedFile(here, "a pipe") as file, os.fdopen(there, "rb") as other:
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
