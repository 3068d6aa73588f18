"""The directory through which a recorder and its QEMU processes find each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

from rtit.capture.qemu.installation import QemuStartError

_PREFIX = "rtit-"
_UNFINISHED = "new-"
_NAMING_SECONDS = 3600.0
_LOCK_NAME = "alive"
# A socket's path has 107 bytes, and the loader reads blanks and colons in a plugin's path as
# separators.
_MAX_PATH = 60
_SEPARATORS = set(" :,;")


class RecordingFolder:
    """A folder of its own, removed by `cleanup`, or from `guard` on by a shell that waits for it,
    if this process is killed; folders that were left even so are removed first.

    `alive` in it is a named pipe that this process holds open and locked as long as it lives. Every
    QEMU watches it and ends when no process holds it any more, or something is written. Raises
    QemuStartError where no folder can be made.
    """

    def __init__(self) -> None:
        self._alive = -1
        self._caretaker = -1
        parent = _temporary_folder()
        remove_stale(parent)
        try:
            self.name = _create_folder(parent)
        except OSError as error:
            raise folder_error(error) from error
        try:
            made = Path(self.name)
            alive = made / _LOCK_NAME
            os.mkfifo(alive, 0o600)
            self._alive = os.open(alive, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.flock(self._alive, fcntl.LOCK_EX)
            # It gets its name when it is locked: another recorder would take it for a killed one's.
            self.name = str(made.rename(made.with_name(made.name.removeprefix(_UNFINISHED))))
        except OSError as error:
            _remove_folder(self.name)
            raise folder_error(error) from error

    def guard(self) -> None:
        """Have it removed when this process is gone."""
        self._caretaker = _start_cleanup_shell(self.name)

    def kill(self) -> None:
        """Kill every QEMU that watches."""
        with contextlib.suppress(OSError):
            os.write(self._alive, b"\0")

    def cleanup(self) -> None:
        """Remove the folder; again is harmless."""
        if self._alive < 0:
            return
        _remove_folder(self.name)
        os.close(self._alive)
        self._alive = -1
        if self._caretaker >= 0:
            os.close(self._caretaker)
            self._caretaker = -1


_CLEANUP_SCRIPT = 'exec 3<&0; (read -r nothing <&3; exec rm -rf -- "$0") &'


def _start_cleanup_shell(folder: str) -> int:
    """A shell removes the folder, if it is still there, when the file that this gives is closed. It
    is in a session of its own, so that what ends a group or a terminal does not end it, and no
    child of ours. -1 if there is no shell.
    """
    end = -1
    with contextlib.suppress(OSError):
        start, end = os.pipe()
        try:
            subprocess.run(
                ["/bin/sh", "-c", _CLEANUP_SCRIPT, folder],
                stdin=start,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,
                check=False,
            )
        finally:
            os.close(start)
    return end


def folder_error(error: OSError) -> QemuStartError:
    """What to raise where the folder cannot be made or filled."""
    return QemuStartError(
        f"a temporary folder for the recording, in {_temporary_folder()}: {error.strerror}"
    )


def remove_stale(parent: str) -> None:
    """Remove the folders in `parent` that are ours and whose recorders are gone."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            name, path = entry.name, Path(entry.path)
            if (name.startswith(_PREFIX) and _is_stale(path)) or (
                name.startswith(_UNFINISHED + _PREFIX) and _is_abandoned(path)
            ):
                _remove_folder(path)


def _is_stale(folder: Path) -> bool:
    try:
        if folder.lstat().st_uid != os.getuid():
            return False
        alive = os.open(
            folder / _LOCK_NAME, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except OSError:
        return False
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(alive)
    return True


def _is_abandoned(folder: Path) -> bool:
    """It never got its name: it gets that at once, or its recorder was killed."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and time.time() - found.st_mtime > _NAMING_SECONDS


def _create_folder(parent: str) -> str:
    """A new folder for us alone. Raises OSError."""
    while True:
        name = f"{parent}/{_UNFINISHED}{_PREFIX}{os.urandom(6).hex()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700)  # noqa: PTH102 - a text
            return name


def _remove_folder(folder: Path | str) -> None:
    """As far as it can be; nothing that we make has a folder in it, and a link in the folder's
    place is not followed.
    """
    with contextlib.suppress(OSError):
        within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in os.listdir(within):  # noqa: PTH208 - what is open
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=within)
        finally:
            os.close(within)
        os.rmdir(folder)  # noqa: PTH106 - as what is opened above


def _temporary_folder() -> str:
    """The first of the folders of `tempfile.gettempdir` in which we may write, by their modes
    alone: that would load compressors and hashes, and write a file to see. Where a program has
    loaded it, its `tempdir` comes first, as there.
    """
    chosen = getattr(sys.modules.get("tempfile"), "tempdir", None)
    given = chosen and os.fsdecode(chosen), *map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))
    may = os.W_OK | os.X_OK
    wanted = (Path(each) for each in (*given, "/tmp", "/var/tmp", "/usr/tmp") if each)
    # `Path.is_dir` raises for what is in nobody's or another's folder, or has too long a name
    usable = (each for each in wanted if os.path.isdir(each) and os.access(each, may))  # noqa: PTH112
    folder = str(next(usable, Path("/tmp")).absolute())
    fits = len(os.fsencode(folder)) < _MAX_PATH and not set(folder) & _SEPARATORS
    return folder if fits else "/tmp"
