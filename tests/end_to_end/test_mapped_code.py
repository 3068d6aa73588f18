"""Code whose file is another to the recorder, is gone at once, or was moved: it is recorded as the
program had it, under both back ends, and no other file's code or names are taken for it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from programs.build import SOURCES
from rtit.cli.main import main
from support.recordings import RTIT, require_backend

CANNOT = 77

TOOL = """
#include <unistd.h>
__attribute__((noinline)) static int NAME(int rounds) {
    int sum = 0;
    for (int i = 0; i < rounds; i++) {
        sum += STEP;
        __asm__ volatile("");
    }
    return sum;
}
int main(void) { return NAME(300) & 15; }
"""


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs."""
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("built")
    flags = ["-O1", "-static", "-D_GNU_SOURCE", "-Wl,--build-id"]
    sources = [SOURCES / f"{name}.c" for name in ("namespace", "unpacked", "moved_text")]
    for source in sources:
        command: list[str | Path] = [compiler, *flags, "-o", folder / source.stem, source]
        if subprocess.run(command, check=False).returncode != 0:
            pytest.skip("no static C library")
    for name, step in (("ours", "i"), ("others", "i % 3 ? i * 7 : sum >> 1")):
        for suffix, more in (("", []), (".bare", ["-Wl,--build-id=none"])):
            command = [compiler, *flags, *more, f"-DNAME={name}", f"-DSTEP={step}"]
            command += ["-x", "c", "-", "-o", folder / (name + suffix)]
            subprocess.run(command, input=TOOL, text=True, check=True)
    return folder


class Recording:
    """Recorded in a folder of its own."""

    def __init__(self, backend: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._backend = backend
        self._capsys = capsys
        self._data, self._truth = str(folder / "perf.data"), str(folder / "truth")

    def record(self, *command: str | Path) -> None:
        """The program behaves as without a recorder, and nothing is missing."""
        folder = self.folder
        options = ["--backend", self._backend, "-q", "-o", self._data, "--truth", self._truth]
        ended = subprocess.run(
            [*RTIT, "record", *options, "--", *command],
            cwd=folder, capture_output=True, check=False, timeout=300,
        )  # fmt: skip
        if ended.returncode == CANNOT:
            pytest.skip("no mount namespace of our own")
        native = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=60)
        assert (ended.returncode, ended.stdout) == (native.returncode, native.stdout)
        assert ended.stderr == b""

    def text(self, *words: str) -> str:
        code = main([*words[:1], self._data, *words[1:]])
        printed = self._capsys.readouterr()
        assert (code, printed.err) == (0, ""), printed
        return printed.out

    def is_right(self) -> None:
        """Decoded as executed, of a file without mistakes, with nothing to say of files."""
        printed = self.text("verify", "--truth", self._truth)
        assert "image:" not in printed
        self.text("lint")

    def functions(self) -> dict[str, int]:
        """Instructions of each."""
        rows = re.findall(r"^ *([\d,]+) +[\d.]+% +(.+)$", self.text("report"), re.MULTILINE)
        return {name: int(count.replace(",", "")) for count, name in rows}


@pytest.fixture
def recording(backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Recording:
    return Recording(backend, tmp_path, capsys)


@pytest.mark.parametrize(
    ("how", "suffix"), [("bind", ""), ("bind", ".bare"), ("tmpfs", ""), ("overlay", "")]
)
def test_other_file_at_the_path_in_mount_namespace(
    how: str, suffix: str, built: Path, recording: Recording
) -> None:
    """The recorder has `ours` at the path that is `others` to the program; `.bare` are files
    without build ids.
    """
    (recording.folder / "folder").mkdir()
    (recording.folder / "scratch").mkdir()
    ours = recording.folder / "folder" / "tool"
    shutil.copy(built / f"ours{suffix}", ours)
    os.utime(ours, (1, 1))
    recording.record(built / "namespace", how, built / f"others{suffix}")
    recording.is_right()
    listed = recording.functions()
    assert not any(name.startswith(("ours", "main (tool)")) for name in listed), listed
    assert listed["tool"] > 1500


@pytest.mark.parametrize("how", ["unlinked", "later", "overwritten", "beyond 4 GB"])
def test_library_of_a_temporary_file(how: str, built: Path, recording: Recording) -> None:
    path = recording.folder / "unpacked"
    recording.record(built / "unpacked", path, how)
    recording.is_right()
    listed = recording.functions()
    # under QEMU it has lost its name when its code first runs
    found = sum(listed.get(name, 0) for name in ("unpacked", "unpacked (deleted)"))
    rounds = [100, -(-101 // 3), 102, -(-103 // 3)]
    assert found == sum(1 + 3 * each + 1 for each in rounds)


def test_text_moved_to_anonymous_memory_keeps_its_names(built: Path, recording: Recording) -> None:
    recording.record(built / "moved_text", "move")
    recording.is_right()
    assert recording.functions()["hot (moved_text)"] > 2 * 5 * 1000


def test_other_code_in_the_place_of_text_has_not_its_names(
    built: Path, recording: Recording
) -> None:
    recording.record(built / "moved_text", "other")
    recording.is_right()
    listed = recording.functions()
    assert 5 * 1000 < listed["hot (moved_text)"] < 8 * 1000
    assert listed["anon"] == 1 + 2 * 500 + 1


def test_file_really_called_deleted_keeps_its_names(built: Path, recording: Recording) -> None:
    program = recording.folder / "x (deleted)"
    shutil.copy(built / "ours", program)
    recording.record(program)
    recording.is_right()
    assert recording.functions()["ours (x (deleted))"] > 3 * 300
