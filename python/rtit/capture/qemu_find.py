"""Which QEMU can record here, and which program it will run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rtit.errors import RecordError

_PROGRAM = "qemu-x86_64"
_PLUGIN = "librtit_qemu.so"
_SCRIPTS = 5


@dataclass(frozen=True, slots=True)
class Found:
    """A QEMU that takes the plugin."""

    qemu: Path
    version: str
    plugin: Path


def find_qemu() -> Found | str:
    """The QEMU to record with, or in one sentence why there is none.

    RTIT_QEMU and RTIT_QEMU_PLUGIN name other files than those in the PATH and in the package.
    """
    qemu = os.environ.get("RTIT_QEMU") or shutil.which(_PROGRAM)
    if qemu is None:
        return f"{_PROGRAM} is not installed (Debian and Ubuntu: package qemu-user)"
    plugin = _find_plugin()
    if plugin is None:
        return f"the plugin {_PLUGIN} is not installed"
    env = {name: value for name, value in os.environ.items() if not name.startswith("RTIT_")}
    try:
        version = _output([qemu, "--version"], env).splitlines()[:1]
        # The plugin says that it is for recording only: it has been loaded and called.
        answer = _output([qemu, "-plugin", str(plugin), "/bin/true"], env)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{qemu} cannot be run: {error}"
    if not version or "version" not in version[0]:
        return f"{qemu} is no QEMU"
    number = version[0].split("version", 1)[1].split()[0]
    if "rtit record" in answer:
        return Found(Path(qemu), number, plugin)
    reason = (answer.strip().splitlines() or ["it says nothing"])[0]
    return (
        f"{qemu} {number} does not take the plugin ({reason}); "
        "a QEMU configured with --enable-plugins and not linked statically does"
    )


def _output(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, errors="replace", timeout=20, check=False
    )
    return done.stdout + done.stderr


def _find_plugin() -> Path | None:
    given = os.environ.get("RTIT_QEMU_PLUGIN")
    if given:
        return Path(given) if Path(given).is_file() else None
    package = Path(__file__).resolve().parent.parent
    target = package.parent.parent / "target" / "release"
    for folder in (package / "_plugin", target):
        if (folder / _PLUGIN).is_file():
            return folder / _PLUGIN
    return None


def resolve(
    program: str, argv: Sequence[str], cwd: Path | str | None
) -> tuple[str, list[str], str]:
    """Follow `#!` lines: the program to run, its arguments with argv[0], its thread's name.

    Raises RecordError (126) for what is no 64-bit x86-64 program.
    """
    name = Path(program).name
    arguments = [os.fspath(argument) for argument in argv]
    for _ in range(1 + _SCRIPTS):
        with (Path(cwd or ".") / program).open("rb") as file:
            head = file.read(256)
        if head[:4] == b"\x7fELF":
            if head[4] != 2 or head[18:20] != b"\x3e\x00":
                raise RecordError(
                    f"{program} is no 64-bit x86-64 program: the QEMU back end runs no other", 126
                )
            return program, arguments, name
        if head[:2] != b"#!":
            break
        line = head[2:].split(b"\n")[0].strip(b" \t")
        interpreter, *argument = os.fsdecode(line).split(None, 1)
        arguments = [interpreter, *argument, program, *arguments[1:]]
        program = interpreter
    raise RecordError(f"{program} is no program that can be executed", 126)
