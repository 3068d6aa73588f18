"""A file that is cut while it is mapped: what was behind its end reads as zeros, and it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from rtit.perfdata.mapped import Mapped

if TYPE_CHECKING:
    from rtit import _core

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


def test_a_handler_that_was_set_after_the_first_map(tmp_path: Path) -> None:
    """It is not told of what is ours; of the rest it is, once, and what it does then holds."""
    before = (
        "import faulthandler, mmap, sys; from rtit.perfdata.mapped import Mapped\n"
        "itself = open(sys.executable, 'rb'); first = Mapped.of(itself.fileno())\n"
        "faulthandler.enable()\n"
    )
    ended = run(tmp_path / "file", PAGE, "", before)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True True\n", "")
    more = "    os.kill(os.getpid(), signal.SIGBUS)"
    ended = run(tmp_path / "file", PAGE, more, before)
    assert (ended.returncode, ended.stdout) == (-7, "True True\n")
    assert ended.stderr.count("Fatal Python error: Bus error") == 1


def test_what_cannot_be_closed_stays_guarded(tmp_path: Path) -> None:
    more = (
        "    file.truncate(len(view)); again = Mapped.of(file.fileno()); held = memoryview(again)\n"
        "    try: again.close()\n"
        "    except BufferError: file.truncate(0); print(bytes(held) == bytes(len(held)))"
    )
    ended = run(tmp_path / "file", PAGE, more)
    assert (ended.returncode, ended.stdout) == (0, "True True\nTrue\n"), ended.stderr


def test_the_memory_is_let_go_of_before_others_can_have_it(tmp_path: Path) -> None:
    class Watching:
        hit = False

        def close(self) -> None:
            assert not mapped.closed
            let_go.append(True)

    file = tmp_path / "file"
    file.write_bytes(b"x" * PAGE)
    let_go: list[bool] = []
    with file.open("rb") as opened:
        mapped = Mapped.of(opened.fileno())
    mapped._guard = cast("_core.Guard", Watching())
    mapped.close()
    assert let_go
    assert mapped.closed


def test_after_it_was_closed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * PAGE)
    with file.open("rb") as opened:
        mapped = Mapped.of(opened.fileno())
    mapped.close()
    assert not mapped.was_cut
