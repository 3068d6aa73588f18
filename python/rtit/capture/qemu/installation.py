"""Find a QEMU that can record on this machine.

The version of a QEMU that has accepted the plugin is cached in a file in the user's cache
directory, valid while both files are unchanged. The file is used only if no other user can have
written it. Errors of reading or writing it are ignored.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rtit.capture.request import find_executable
from rtit.errors import RecordError

_FORMAT_VERSION = "rtit qemu 1"
_FILE_NAME = "qemu"
_MAX_BYTES = 1 << 14
_DIGITS = frozenset("0123456789.")


def cached_version(qemu: Path, plugin: Path) -> str | None:
    """Return the version of this QEMU if it accepted this plugin before, else None."""
    try:
        said = _read_cache(_cache_folder()).decode().split("\n")
        *files, version, end = said
        if files == _file_change_stamps(qemu, plugin) and not end and _is_version_text(version):
            return version
    except (OSError, RuntimeError, ValueError):
        pass
    return None


def store_version(qemu: Path, plugin: Path, version: str) -> None:
    """Remember that this QEMU accepted this plugin."""
    if not _is_version_text(version):
        return
    new = None
    try:
        folder = _cache_folder()
        text = "\n".join([*_file_change_stamps(qemu, plugin), version, ""])
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_trusted(folder.lstat(), stat.S_ISDIR):
            return
        name = folder / f".{_FILE_NAME}-{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600), "wb") as file:
            new = name
            file.write(text.encode())
        new.replace(folder / _FILE_NAME)
        new = None
    except (OSError, RuntimeError, ValueError):
        pass
    finally:
        if new is not None:
            new.unlink(missing_ok=True)


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification says that relative paths must be ignored.
    if not base.startswith("/"):
        home = Path("~").expanduser()
        if not home.is_absolute() or home == Path("/"):
            raise OSError("no home")
        base = f"{home}/.cache"
    return Path(base, "rtit")


def _read_cache(folder: Path) -> bytes:
    if not _is_trusted(folder.lstat(), stat.S_ISDIR):
        raise OSError("another's folder")
    # O_NONBLOCK: opening a pipe must not block.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(folder / _FILE_NAME, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not _is_trusted(status, stat.S_ISREG) or status.st_size > _MAX_BYTES:
            raise OSError("another's file")
        return file.read(_MAX_BYTES)


def _is_trusted(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_kind(status.st_mode) and status.st_uid == os.geteuid() and not writable_by_others


def _file_change_stamps(qemu: Path, plugin: Path) -> list[str]:
    lines = [_FORMAT_VERSION]
    for path in (qemu, plugin):
        status = path.stat()
        lines += [os.fspath(path.absolute()), f"{status.st_size} {status.st_mtime_ns}"]
    if any("\n" in line for line in lines):
        raise ValueError("a path of several lines")
    return lines


def _is_version_text(text: str) -> bool:
    return 0 < len(text) < 40 and text[0].isdigit() and _DIGITS.issuperset(text)


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
        self._plugin = find_plugin()
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
            version, output = map(_read_probe_answer, self._probes)
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
            f"{self._qemu} {number} does not load the plugin ({reason}); rtit needs a dynamically "
            "linked QEMU that was configured with --enable-plugins"
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


def _read_probe_answer(probe: subprocess.Popen[bytes]) -> str:
    with probe:
        try:
            output, _ = probe.communicate(timeout=_TIMEOUT)
        except BaseException:
            probe.kill()
            raise
    return output.decode(errors="replace")


def find_plugin() -> Path | None:
    """Return the path of the plugin; None if it is not installed."""
    given = os.environ.get("RTIT_QEMU_PLUGIN")
    if given:
        return Path(given) if Path(given).is_file() else None
    package = Path(__file__).resolve().parents[2]
    target = package.parent.parent / "target" / "release"
    for folder in (package / "_plugin", target):
        if (folder / _PLUGIN_NAME).is_file():
            return folder / _PLUGIN_NAME
    return None
