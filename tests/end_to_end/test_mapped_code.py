"""Code that the recorder finds at no path: in another mount namespace, deleted, or moved.

Both back ends record it as the program had it, and take no other file's code or names for it.
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
from support.properties import pairs_in_turn
from support.recordings import RTIT, require_backend

EXIT_NO_NAMESPACE = 77

TOOL_SOURCE = """
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
def programs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled programs."""
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("programs")
    flags = ["-O1", "-static", "-D_GNU_SOURCE", "-Wl,--build-id"]
    sources = [SOURCES / f"{name}.c" for name in ("namespace", "unpacked", "moved_text")]
    for source in sources:
        command: list[str | Path] = [compiler, *flags, "-o", folder / source.stem, source]
        if subprocess.run(command, check=False).returncode != 0:
            pytest.skip("no static C library")
    for name, step in (("ours", "i"), ("others", "i % 3 ? i * 7 : sum >> 1")):
        for suffix, more in (("", []), (".no-build-id", ["-Wl,--build-id=none"])):
            command = [compiler, *flags, *more, f"-DNAME={name}", f"-DSTEP={step}"]
            command += ["-x", "c", "-", "-o", folder / (name + suffix)]
            subprocess.run(command, input=TOOL_SOURCE, text=True, check=True)
    return folder


class MappedCodeRecording:
    """Return a recording in a separate folder."""

    def __init__(self, backend: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._backend = backend
        self._capsys = capsys
        self._data, self._truth = str(folder / "perf.data"), str(folder / "truth")

    def record(self, *command: str | Path) -> None:
        """Record a program; it must behave as natively and cause no warning."""
        folder = self.folder
        options = ["--backend", self._backend, "-q", "-o", self._data, "--truth", self._truth]
        ended = subprocess.run(
            [*RTIT, "record", *options, "--", *command],
            cwd=folder, capture_output=True, check=False, timeout=300,
        )  # fmt: skip
        if ended.returncode == EXIT_NO_NAMESPACE:
            pytest.skip("no mount namespace of our own")
        native = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=60)
        assert (ended.returncode, ended.stdout) == (native.returncode, native.stdout)
        assert ended.stderr == b""

    def run_command(self, *words: str) -> str:
        code = main([*words[:1], self._data, *words[1:]])
        printed = self._capsys.readouterr()
        assert (code, printed.err) == (0, ""), printed
        return printed.out

    def assert_exact(self) -> None:
        """Check that the recording decodes as executed, passes lint, and lacks no code."""
        printed = self.run_command("verify", "--truth", self._truth)
        assert "image:" not in printed
        self.run_command("lint")

    def instructions_by_function(self) -> dict[str, int]:
        """Return the number of instructions of each function."""
        rows = re.findall(r"^ *([\d,]+) +[\d.]+% +(.+)$", self.run_command("report"), re.MULTILINE)
        return {name: int(count.replace(",", "")) for count, name in rows}


@pytest.fixture
def recording(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> MappedCodeRecording:
    return MappedCodeRecording(backend, tmp_path, capsys)


@pytest.mark.parametrize(
    ("how", "suffix", "backend"),
    [
        *(("bind", "", "qemu"), ("bind", ".no-build-id", "qemu")),
        *(("tmpfs", "", "qemu"), ("overlay", "", "qemu")),
        *(("bind", ".no-build-id", "ptrace"), ("overlay", "", "ptrace")),
        pytest.param("bind", "", "ptrace", marks=pytest.mark.slow),
        pytest.param("tmpfs", "", "ptrace", marks=pytest.mark.slow),
    ],
    indirect=["backend"],
)
def test_program_in_another_mount_namespace_is_decoded(
    how: str, suffix: str, programs_folder: Path, recording: MappedCodeRecording
) -> None:
    """The recorder sees `ours` at the path where the program sees `others`.

    Files with suffix `.no-build-id` have no build id.
    """
    (recording.folder / "folder").mkdir()
    (recording.folder / "scratch").mkdir()
    ours = recording.folder / "folder" / "tool"
    shutil.copy(programs_folder / f"ours{suffix}", ours)
    os.utime(ours, (1, 1))
    recording.record(programs_folder / "namespace", how, programs_folder / f"others{suffix}")
    recording.assert_exact()
    listed = recording.instructions_by_function()
    assert not any(name.startswith(("ours", "main (tool)")) for name in listed), listed
    assert listed["tool"] > 1500


@pytest.mark.parametrize(
    ("how", "backend"),
    pairs_in_turn(["unlinked", "later", "overwritten", "beyond 4 GB"], ["qemu", "ptrace"]),
    indirect=["backend"],
)
def test_code_of_a_temporary_library_is_decoded(
    how: str, programs_folder: Path, recording: MappedCodeRecording
) -> None:
    path = recording.folder / "unpacked"
    recording.record(programs_folder / "unpacked", path, how)
    recording.assert_exact()
    listed = recording.instructions_by_function()
    # under QEMU the file is already deleted when its code first runs
    found = sum(listed.get(name, 0) for name in ("unpacked", "unpacked (deleted)"))
    rounds = [100, -(-101 // 3), 102, -(-103 // 3)]
    assert found == sum(1 + 3 * each + 1 for each in rounds)


def test_text_moved_to_anonymous_memory_keeps_symbols(
    programs_folder: Path, recording: MappedCodeRecording
) -> None:
    recording.record(programs_folder / "moved_text", "move")
    recording.assert_exact()
    assert recording.instructions_by_function()["hot (moved_text)"] > 2 * 5 * 1000


def test_other_code_in_place_of_text_does_not_get_its_symbols(
    programs_folder: Path, recording: MappedCodeRecording
) -> None:
    recording.record(programs_folder / "moved_text", "other")
    recording.assert_exact()
    listed = recording.instructions_by_function()
    assert 5 * 1000 < listed["hot (moved_text)"] < 8 * 1000
    assert listed["anon"] == 1 + 2 * 500 + 1


def test_file_named_deleted_keeps_symbols(
    programs_folder: Path, recording: MappedCodeRecording
) -> None:
    program = recording.folder / "x (deleted)"
    shutil.copy(programs_folder / "ours", program)
    recording.record(program)
    recording.assert_exact()
    assert recording.instructions_by_function()["ours (x (deleted))"] > 3 * 300
