"""The temporary directory that a recorder shares with its QEMU processes."""

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
# A socket's path has at most 107 bytes, and the loader treats blanks and colons in LD_PRELOAD as
# separators.
_MAX_PATH = 60
_SEPARATORS = set(" :,;")


class RecordingFolder:
    """A new temporary folder, removed by `cleanup`.

    After `guard` a shell removes it, too, if this process is killed. Stale folders of killed
    recorders are removed first. The named pipe `alive` in the folder is held open and locked by
    this process. Every QEMU watches it, and ends when no process holds it or it has data. Raises
    QemuStartError if no folder can be created.
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
            # Rename after locking: another recorder removes a folder with the final name and no
            # lock.
            self.name = str(made.rename(made.with_name(made.name.removeprefix(_UNFINISHED))))
        except OSError as error:
            _remove_folder(self.name)
            raise folder_error(error) from error

    def guard(self) -> None:
        """Start a shell that removes the folder after the end of this process."""
        self._caretaker = _start_cleanup_shell(self.name)

    def kill(self) -> None:
        """End every QEMU that watches the pipe."""
        with contextlib.suppress(OSError):
            os.write(self._alive, b"\0")

    def cleanup(self) -> None:
        """Remove the folder. May be called again."""
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
    """Start a shell that removes the folder when the returned descriptor is closed; -1 on failure.

    The shell has its own session, so that a signal to our process group or terminal does not end
    it. It is not our child.
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
    """Return the error for a folder that cannot be created or filled."""
    return QemuStartError(
        f"cannot create a temporary folder in {_temporary_folder()}: {error.strerror}"
    )


def remove_stale(parent: str) -> None:
    """Remove our folders in `parent` if their recorders have ended."""
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
    """Return whether a folder without its final name is so old that its recorder was killed."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and time.time() - found.st_mtime > _NAMING_SECONDS


def _create_folder(parent: str) -> str:
    """Create a folder that only we can access; return its path. Raises OSError."""
    while True:
        name = f"{parent}/{_UNFINISHED}{_PREFIX}{os.urandom(6).hex()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700)  # noqa: PTH102 - a text
            return name


def _remove_folder(folder: Path | str) -> None:
    """Remove a folder and its files, as far as possible.

    The recorder creates no subfolders. A symbolic link in place of the folder is not followed.
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
    """Return the folder of `tempfile.gettempdir`, or /tmp if its path cannot hold a socket.

    A folder qualifies by its permissions, without the slow import of `tempfile` and without a test
    file. If `tempfile` is loaded, its `tempdir` has precedence.
    """
    chosen = getattr(sys.modules.get("tempfile"), "tempdir", None)
    given = chosen and os.fsdecode(chosen), *map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))
    may = os.W_OK | os.X_OK
    wanted = (Path(each) for each in (*given, "/tmp", "/var/tmp", "/usr/tmp") if each)
    # Not `Path.is_dir`, which raises for inaccessible folders and for names that are too long.
    usable = (each for each in wanted if os.path.isdir(each) and os.access(each, may))  # noqa: PTH112
    folder = str(next(usable, Path("/tmp")).absolute())
    fits = len(os.fsencode(folder)) < _MAX_PATH and not set(folder) & _SEPARATORS
    return folder if fits else "/tmp"
