"""A file that is cut while it is mapped: what was behind its end reads as zeros, and it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rtit.perfdata.mapped import Mapped

PAGE = os.sysconf("SC_PAGESIZE")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have other signals")

READ = """
import os, signal, sys
from rtit.perfdata.mapped import Mapped
with open(sys.argv[1], "r+b") as file:
    mapped = Mapped.of(file.fileno())
    view = memoryview(mapped)
    assert bytes(view) == b"x" * len(view) and not mapped.was_cut
    os.truncate(sys.argv[1], {left})
    found = bytes(view[{left} :])
    assert found == bytes(len(found)), found
    print(mapped.was_cut, bytes(view[: {left}]) == b"x" * {left})
{more}
"""


def run(
    file: Path, left: int, more: str = "", before: str = ""
) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which would not survive."""
    file.write_bytes(b"x" * (3 * PAGE))
    return subprocess.run(
        [sys.executable, "-u", "-c", before + READ.format(left=left, more=more), str(file)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("left", [0, PAGE, 2 * PAGE])
def test_what_is_cut_is_zeros(tmp_path: Path, left: int) -> None:
    ended = run(tmp_path / "file", left)
    assert (ended.returncode, ended.stdout) == (0, "True True\n"), ended.stderr


def test_it_is_known_after_the_file_has_grown_again(tmp_path: Path) -> None:
    more = "    os.truncate(sys.argv[1], len(view)); print(mapped.was_cut)"
    ended = run(tmp_path / "file", PAGE, more)
    assert ended.stdout == "True True\nTrue\n", ended.stderr


def test_other_maps_are_not_ours(tmp_path: Path) -> None:
    """What a program did before about this signal it does now."""
    before = "import faulthandler, mmap; faulthandler.enable()\n"
    more = (
        "    os.truncate(sys.argv[1], 8192); other = mmap.mmap(file.fileno(), 8192)\n"
        "    os.truncate(sys.argv[1], 4096); other[5000]"
    )
    ended = run(tmp_path / "file", PAGE, more, before)
    assert ended.stdout == "True True\n"
    assert ended.returncode == -7
    assert "Bus error" in ended.stderr


def test_after_it_was_closed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * PAGE)
    with file.open("rb") as opened:
        mapped = Mapped.of(opened.fileno())
    mapped.close()
    assert not mapped.was_cut
