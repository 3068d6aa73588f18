"""Which QEMU is taken, and why not, in one sentence."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from rtit.capture.qemu.installation import QemuStartError, find_qemu
from rtit.capture.qemu.qemu_process import resolve_interpreter
from rtit.errors import RecordError


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "plugin.so"
    path.touch()
    monkeypatch.setenv("RTIT_QEMU_PLUGIN", str(path))
    return path


def test_missing_qemu_names_the_package(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RTIT_QEMU", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    answer = find_qemu()
    assert isinstance(answer, str)
    assert "not installed" in answer
    assert "qemu-user" in answer


def test_missing_plugin_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTIT_QEMU", "/bin/true")
    monkeypatch.setenv("RTIT_QEMU_PLUGIN", "/nowhere/plugin.so")
    answer = find_qemu()
    assert isinstance(answer, str)
    assert "plugin" in answer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo something else", "is not QEMU"),
        (
            "[ $1 = --version ] && echo qemu-x86_64 version 11.1 || echo no -plugin >&2",
            "no -plugin",
        ),
        ("[ $1 = --version ] && echo qemu-x86_64 version 11.1", "no output"),
    ],
)
def test_unusable_qemu_is_reported_with_its_output(
    text: str, reason: str, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RTIT_QEMU", str(script(tmp_path / "qemu", f"#!/bin/sh\n{text}\n")))
    answer = find_qemu()
    assert isinstance(answer, str)
    assert reason in answer


def test_script_resolves_to_its_interpreter(tmp_path: Path) -> None:
    path = str(script(tmp_path / "tool", "#! /bin/sh  -e -x \n"))
    found = resolve_interpreter(path, ["tool", "one", "two"], None)
    assert found == ("/bin/sh", ["/bin/sh", "-e -x", path, "one", "two"], "tool")


def test_script_path_is_relative_to_cwd(tmp_path: Path) -> None:
    script(tmp_path / "tool", "#!/bin/sh")
    assert resolve_interpreter("./tool", ["./tool"], tmp_path) == (
        "/bin/sh",
        ["/bin/sh", "./tool"],
        "tool",
    )


def test_32_bit_program_raises_qemu_start_error(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"\x7fELF\1\1\1" + bytes(9) + struct.pack("<HHI", 2, 3, 1) + bytes(60))
    with pytest.raises(QemuStartError, match="64-bit") as error:
        resolve_interpreter(os.fspath(path), ["old"], None)
    assert error.value.exit_code == 125


def test_text_file_and_script_loop_are_not_executable(tmp_path: Path) -> None:
    path = script(tmp_path / "text", "hello\n")
    with pytest.raises(RecordError, match="not an executable program") as error:
        resolve_interpreter(os.fspath(path), ["text"], None)
    assert error.value.exit_code == 126
    loop = tmp_path / "loop"
    script(loop, f"#!{loop}\n")
    with pytest.raises(RecordError, match="not an executable program"):
        resolve_interpreter(os.fspath(loop), ["loop"], None)
