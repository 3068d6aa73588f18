"""The plugin works with each version of QEMU's plugin interface.

A stand-in for QEMU executes two blocks of its own code, since few machines have several QEMUs.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from programs.build import SOURCES
from rtit.capture.qemu.installation import find_qemu
from rtit.capture.qemu.start import start_qemu
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from support.recordings import RTIT, record_to_end

# Interface version and oldest accepted version of QEMU 7.2, 9.0, 9.1, 9.2, 10.1, 11.0, 11.1.
VERSIONS = [(1, 0), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2), (7, 7)]


def build_qemu_stand_in(folder: Path, version: int, oldest_version: int) -> Path:
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    path = folder / "qemu"
    flags = ["-O1", "-fno-omit-frame-pointer", "-no-pie", "-rdynamic"]
    defined = [f"-DSPOKEN={version}", f"-DLEAST={oldest_version}"]
    source = SOURCES / "stand_in_qemu.c"
    subprocess.run([compiler, *flags, *defined, "-o", path, source, "-ldl"], check=True)
    return path


@pytest.mark.parametrize(("version", "oldest_version"), VERSIONS)
def test_plugin_works_with_interface_version(
    version: int,
    oldest_version: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RTIT_QEMU", str(build_qemu_stand_in(tmp_path, version, oldest_version)))
    found = find_qemu()
    if isinstance(found, str) and "is not installed" in found:
        pytest.skip(found)
    assert not isinstance(found, str), found
    data, truth = tmp_path / "perf.data", tmp_path / "truth"
    recording = record_to_end(
        start_qemu(RecordRequest(["/bin/true"], output=data, truth=truth), installation=found)
    )
    assert (recording.exit_code, recording.threads, recording.warnings) == (5, 1, ())
    # mov, mov, jmp; nop, syscall: twice.
    assert recording.instructions == 10
    assert main(["verify", str(data), "--truth", str(truth)]) == 0
    assert "identical: 10 instructions" in capsys.readouterr().out


def test_future_interface_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RTIT_QEMU", str(build_qemu_stand_in(tmp_path, 9, 8)))
    ended = subprocess.run(
        [*RTIT, "record", "--backend", "qemu", "--", "/bin/true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 125
    assert "plugin requires API version 7, not 8 to 9" in ended.stderr
