"""Cache of the QEMU probe: the version of a QEMU that has accepted the plugin.

The cache is a file in the user's cache directory, valid while both files are unchanged. It is used
only if no other user can have written it. Errors of reading or writing it are ignored.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

_FORMAT_VERSION = "rtit qemu 1"
_FILE_NAME = "qemu"
_MAX_BYTES = 1 << 14
_DIGITS = frozenset("0123456789.")


def cached_version(qemu: Path, plugin: Path) -> str | None:
    """Return the version of this QEMU if it accepted this plugin before, else None."""
    try:
        said = _read_cache(_cache_folder()).decode().split("\n")
        *files, version, end = said
        if files == _file_states(qemu, plugin) and not end and _is_version(version):
            return version
    except (OSError, RuntimeError, ValueError):
        pass
    return None


def store_version(qemu: Path, plugin: Path, version: str) -> None:
    """Remember that this QEMU accepted this plugin."""
    if not _is_version(version):
        return
    new = None
    try:
        folder = _cache_folder()
        text = "\n".join([*_file_states(qemu, plugin), version, ""])
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


def _file_states(qemu: Path, plugin: Path) -> list[str]:
    lines = [_FORMAT_VERSION]
    for path in (qemu, plugin):
        status = path.stat()
        lines += [os.fspath(path.absolute()), f"{status.st_size} {status.st_mtime_ns}"]
    if any("\n" in line for line in lines):
        raise ValueError("a path of several lines")
    return lines


def _is_version(text: str) -> bool:
    return 0 < len(text) < 40 and text[0].isdigit() and _DIGITS.issuperset(text)
