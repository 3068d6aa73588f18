"""What a verb writes into a file is there whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from live import RTIT
from rtit.cli.written import write


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


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["report", "--help"]])
def test_help_that_cannot_be_written_is_an_error(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*RTIT, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, "rtit: No space left on device\n")
