"""Which QEMU took the plugin before: asked once, and again when either file is another.

A file of the user's cache folder, believed only if nobody else can have written it; one that cannot
be read is as good as none, and one that cannot be written is left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

_FORMAT = "rtit qemu 1"
_NAME = "qemu"
_MOST = 1 << 14
_DIGITS = frozenset("0123456789.")


def version_of(qemu: Path, plugin: Path) -> str | None:
    """The version of this QEMU, which took this plugin the last time; None: it is to be asked."""
    try:
        said = _read(_folder()).decode().split("\n")
        *files, version, end = said
        if files == _state(qemu, plugin) and not end and _is_version(version):
            return version
    except (OSError, RuntimeError, ValueError):
        pass
    return None


def remember(qemu: Path, plugin: Path, version: str) -> None:
    """This QEMU took this plugin."""
    if not _is_version(version):
        return
    new = None
    try:
        folder = _folder()
        text = "\n".join([*_state(qemu, plugin), version, ""])
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(folder.lstat(), stat.S_ISDIR):
            return
        name = folder / f".{_NAME}-{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600), "wb") as file:
            new = name
            file.write(text.encode())
        new.replace(folder / _NAME)
        new = None
    except (OSError, RuntimeError, ValueError):
        pass
    finally:
        if new is not None:
            new.unlink(missing_ok=True)


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # a relative one is to be ignored, says the specification of base directories
    if not base.startswith("/"):
        home = Path("~").expanduser()
        if not home.is_absolute() or home == Path("/"):
            raise OSError("no home")
        base = f"{home}/.cache"
    return Path(base, "rtit")


def _read(folder: Path) -> bytes:
    if not _is_ours(folder.lstat(), stat.S_ISDIR):
        raise OSError("another's folder")
    # should it be a pipe, nobody waits for a writer
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(folder / _NAME, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not _is_ours(status, stat.S_ISREG) or status.st_size > _MOST:
            raise OSError("another's file")
        return file.read(_MOST)


def _is_ours(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_kind(status.st_mode) and status.st_uid == os.geteuid() and not writable_by_others


def _state(qemu: Path, plugin: Path) -> list[str]:
    lines = [_FORMAT]
    for path in (qemu, plugin):
        status = path.stat()
        lines += [os.fspath(path.absolute()), f"{status.st_size} {status.st_mtime_ns}"]
    if any("\n" in line for line in lines):
        raise ValueError("a path of several lines")
    return lines


def _is_version(text: str) -> bool:
    return 0 < len(text) < 40 and text[0].isdigit() and _DIGITS.issuperset(text)
