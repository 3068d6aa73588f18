"""Find a QEMU that can record on this machine."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rtit.capture.program import find_executable
from rtit.capture.qemu.probe_cache import cached_version, store_version
from rtit.errors import RecordError


class QemuStartError(RecordError):
    """QEMU cannot start, or cannot run this program; no instruction of the program has run."""


_QEMU_NAME = "qemu-x86_64"
_PLUGIN_NAME = "librtit_qemu.so"
_TIMEOUT = 20.0
QEMU_ENVIRONMENT = ("LD_", "GLIBC_", "GCONV_PATH", "MALLOC_", "G_", "QEMU_", "RTIT_", "LOCPATH")
"""Prefixes of variables that QEMU or its libraries read. They are renamed for QEMU, and the plugin
restores them for the guest."""


@dataclass(frozen=True, slots=True)
class QemuInstallation:
    """A QEMU that accepts the plugin."""

    qemu: Path
    version: str
    plugin: Path


def find_qemu() -> QemuInstallation | str:
    """Return the QEMU to record with, or one sentence with the reason why there is none."""
    return QemuSearch(skip_cache=True).result()


class QemuSearch:
    """Searches QEMU in the background: the probes run until `result` is called."""

    def __init__(self, *, skip_cache: bool = False) -> None:
        self._qemu = os.environ.get("RTIT_QEMU") or find_executable(_QEMU_NAME)
        self._plugin = _find_plugin()
        self._probes: list[subprocess.Popen[bytes]] = []
        self._error: OSError | None = None
        self._cached_version: str | None = None
        if self._qemu is None or self._plugin is None:
            return
        if not skip_cache:
            self._cached_version = cached_version(Path(self._qemu), self._plugin)
            if self._cached_version is not None:
                return
        try:
            self._start_probe(self._qemu, "--version")
            # The plugin prints that it is only for recording, which shows that QEMU loads it.
            self._start_probe(self._qemu, "-plugin", str(self._plugin), "/bin/true")
        except OSError as error:
            self._error = error

    def result(self) -> QemuInstallation | str:
        """Return the result of `find_qemu`."""
        if self._qemu is None:
            return f"{_QEMU_NAME} is not installed (Debian and Ubuntu: package qemu-user)"
        if self._plugin is None:
            return f"the plugin {_PLUGIN_NAME} is not installed"
        if self._cached_version is not None:
            return QemuInstallation(Path(self._qemu), self._cached_version, self._plugin)
        try:
            if self._error is not None:
                raise self._error
            version, output = map(_probe_answer, self._probes)
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "strerror", None) or str(error)
            return f"{self._qemu} cannot be run: {why}"
        numbers = version.partition("\n")[0].partition("version")[2].split()
        if not numbers:
            return f"{self._qemu} is not QEMU"
        number = numbers[0]
        if "rtit record" in output:
            store_version(Path(self._qemu), self._plugin, number)
            return QemuInstallation(Path(self._qemu), number, self._plugin)
        reason = (output.strip().splitlines() or ["no output"])[0]
        return (
            f"{self._qemu} {number} does not load the plugin ({reason}); "
            "this needs a dynamically linked QEMU, configured with --enable-plugins"
        )

    def _start_probe(self, *command: str) -> None:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(QEMU_ENVIRONMENT)
        }
        self._probes.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )


def _probe_answer(probe: subprocess.Popen[bytes]) -> str:
    with probe:
        try:
            output, _ = probe.communicate(timeout=_TIMEOUT)
        except BaseException:
            probe.kill()
            raise
    return output.decode(errors="replace")


def _find_plugin() -> Path | None:
    given = os.environ.get("RTIT_QEMU_PLUGIN")
    if given:
        return Path(given) if Path(given).is_file() else None
    package = Path(__file__).resolve().parents[2]
    target = package.parent.parent / "target" / "release"
    for folder in (package / "_plugin", target):
        if (folder / _PLUGIN_NAME).is_file():
            return folder / _PLUGIN_NAME
    return None
