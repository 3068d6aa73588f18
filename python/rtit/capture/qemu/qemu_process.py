"""The QEMU process of a recording. It starts while the recorder prepares its output.

A program is given by its path, arguments and environment, after `#!` lines are resolved. A script
names its interpreter; the kernel follows up to five such lines. The checks raise, before QEMU
starts, the errors that starting the program directly would raise.

The recorder shares a temporary directory with its QEMU processes, and tracks them by pidfd. It
needs up to three open files for each process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import selectors
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from rtit.capture.qemu.installation import (
    QEMU_ENVIRONMENT,
    QemuInstallation,
    QemuStartError,
    find_qemu,
)
from rtit.capture.request import RecordRequest, check_program, find_program
from rtit.errors import RecordError, UsageError

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
        remove_stale_folders(parent)
        try:
            self.name = _create_folder(parent)
        except OSError as error:
            raise temporary_folder_error(error) from error
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
            raise temporary_folder_error(error) from error

    def start_cleanup_process(self) -> None:
        """Start a shell that removes the folder after the end of this process."""
        self._caretaker = _start_cleanup_shell(self.name)

    def kill(self) -> None:
        """End every QEMU that watches the pipe."""
        with contextlib.suppress(OSError):
            os.write(self._alive, b"\0")

    def remove_folder(self) -> None:
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


def temporary_folder_error(error: OSError) -> QemuStartError:
    """Return the error for a folder that cannot be created or filled."""
    return QemuStartError(
        f"cannot create a temporary folder in {_temporary_folder()}: {error.strerror}"
    )


def remove_stale_folders(parent: str) -> None:
    """Remove our folders in `parent` if their recorders have ended."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            name, path = entry.name, Path(entry.path)
            if (name.startswith(_PREFIX) and _is_stale_folder(path)) or (
                name.startswith(_UNFINISHED + _PREFIX) and _is_abandoned_folder(path)
            ):
                _remove_folder(path)


def _is_stale_folder(folder: Path) -> bool:
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


def _is_abandoned_folder(folder: Path) -> bool:
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

    The recorder creates no subfolders. If the folder is a symbolic link, it is not followed.
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


class RecordingProcesses:
    """Running processes that provably belong to the recording with this folder.

    The pid that a plugin reports is no proof: the process may have ended and another one may have
    its number, and in a pid namespace the number differs from ours. The proof is the recording's
    folder in the initial environment of the process, which its children inherit.
    """

    def __init__(self, folder: str, selector: selectors.BaseSelector) -> None:
        self._environment_entry = b"RTIT_QEMU_FOLDER=" + os.fsencode(folder)
        self._selector = selector
        self._files: dict[int, int] = {}
        self._has_untracked = False
        # The other descriptors are for connections. Processes above the limit are not tracked; the
        # pipe in the recording folder ends them.
        self._max_processes = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4

    @property
    def has_running_processes(self) -> bool:
        """Whether a process may still run."""
        return self._has_untracked or bool(self._files)

    def track_process(self, pid: int) -> None:
        """Track process `pid`, which its plugin has announced, if it belongs to the recording."""
        if pid in self._files:
            return
        if len(self._files) >= self._max_processes:
            self._has_untracked = True
            return
        try:
            file = os.pidfd_open(pid)
        except (OSError, OverflowError):
            self._has_untracked = True
            return
        if self._belongs_to_recording(pid, file):
            self._files[pid] = file
            self._selector.register(file, selectors.EVENT_READ, self)
        else:
            self._has_untracked = True
            os.close(file)

    def remove_ended_process(self, file: int) -> int:
        """Remove the process of pidfd `file`, which has ended; return its pid."""
        self._selector.unregister(file)
        os.close(file)
        [pid] = [pid for pid, each in self._files.items() if each == file]
        del self._files[pid]
        return pid

    def kill(self) -> None:
        """Kill all tracked processes."""
        for file in self._files.values():
            _send_signal(file, signal.SIGKILL)

    def close(self) -> None:
        """Close all descriptors. May be called again."""
        for file in self._files.values():
            os.close(file)
        self._files = {}

    def _belongs_to_recording(self, pid: int, file: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        # If the pidfd is still alive, the environment that was read belongs to its process.
        return self._environment_entry in environment.split(b"\0") and _send_signal(file, 0)


def _send_signal(file: int, number: int) -> bool:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(file, number)
        return True
    return False


_RETRY_SECONDS = 0.02
_LOCK = threading.Lock()
_original_soft_limit = 0
"""The soft limit before the first of the active recordings; 0 without one."""
_active_limits = 0


class OpenFileLimit:
    """Raises the soft limit on open files to the hard limit, until `close`.

    It keeps one descriptor in reserve, to accept and close a connection at the limit.
    """

    def __init__(self) -> None:
        global _original_soft_limit, _active_limits  # noqa: PLW0603 - the limit is the process's
        with _LOCK:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if not _active_limits:
                _original_soft_limit = soft
            _active_limits += 1
            self._set_soft_limit(hard)
        self._reserve = _reserve_descriptor()
        self._closed = False

    def restore_in_child(self, pid: int) -> None:
        """Restore the original limit in a child process."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_original_soft_limit, hard))

    def reject_connection(self, listener: socket.socket) -> None:
        """Accept and close the next connection; sleep briefly if no descriptor is free for it."""
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
        try:
            listener.accept()[0].close()
        except OSError:
            time.sleep(_RETRY_SECONDS)
        self._reserve = _reserve_descriptor()

    def close(self) -> None:
        """Restore the original limit if no other recording is active. May be called again."""
        global _active_limits  # noqa: PLW0603
        if self._closed:
            return
        self._closed = True
        if self._reserve >= 0:
            os.close(self._reserve)
        with _LOCK:
            _active_limits -= 1
            if not _active_limits:
                self._set_soft_limit(_original_soft_limit)

    @staticmethod
    def _set_soft_limit(soft: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _reserve_descriptor() -> int:
    """Return an open descriptor, or -1 at the limit."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return -1


_MACHINE_X86_64 = 62
_ELF_TYPES = (2, 3)  # ET_EXEC, ET_DYN
_PT_INTERP = 3
_PROGRAM_HEADER = 56
_MAX_SEGMENTS = 65536 // _PROGRAM_HEADER
"""The kernel takes no more than 64 KiB of program headers."""


def check_elf(program: str, file: BinaryIO) -> None:
    """Raise RecordError (126) unless `file` is a whole header of a program whose loader exists,
    QemuStartError unless it is a 64-bit x86-64 program.
    """
    file.seek(0)
    head = file.read(64)
    if len(head) < 64:
        raise RecordError(f"{program} cannot be executed: its ELF header is truncated", 126)
    if head[4:5] != b"\2" or head[18:20] != _MACHINE_X86_64.to_bytes(2, "little"):
        raise QemuStartError(
            f"{program} is not a 64-bit x86-64 program, and the QEMU back end runs only such "
            "programs"
        )
    kind = struct.unpack_from("<H", head, 16)[0]
    offset = struct.unpack_from("<Q", head, 32)[0]
    size, count = struct.unpack_from("<HH", head, 54)
    if kind not in _ELF_TYPES or size != _PROGRAM_HEADER or not 1 <= count <= _MAX_SEGMENTS:
        raise RecordError(f"{program} cannot be executed: it is an ELF file, not a program", 126)
    segments = _read_exactly(file, offset, count * _PROGRAM_HEADER)
    if segments is None:
        raise RecordError(f"{program} cannot be executed: its program headers are truncated", 126)
    for segment in struct.iter_unpack("<IIQQQQQQ", segments):
        kind, _, at, _, _, length, _, _ = segment
        if kind != _PT_INTERP:
            continue
        loader = _read_exactly(file, at, min(length, 4096))
        path = os.fsdecode((loader or b"").split(b"\0")[0])
        if not path or not Path(path).is_file():
            raise RecordError(
                f"{program} cannot be executed: its loader {path} does not exist", 126
            )
        return


def _read_exactly(file: BinaryIO, offset: int, size: int) -> bytes | None:
    if offset >= os.fstat(file.fileno()).st_size:
        return None
    file.seek(offset)
    data = file.read(size)
    return data if len(data) == size else None


_MAX_SCRIPTS = 5


def resolve_interpreter(
    program: str, argv: Sequence[str], cwd: Path | str | None
) -> tuple[str, list[str], str]:
    """Follow `#!` lines; return the program, its arguments with argv[0], and its thread's name.

    Raises RecordError (126) if it is not a program, QemuStartError if only QEMU cannot run it.
    """
    name = Path(program).name
    arguments = [os.fspath(argument) for argument in argv]
    requested = program
    for _ in range(1 + _MAX_SCRIPTS):
        path = Path(cwd or ".") / program
        try:
            is_interpreter = program != requested
            if is_interpreter and not (path.is_file() and os.access(path, os.X_OK)):
                raise RecordError(
                    f"{requested}: cannot be executed: its interpreter {program} does not exist "
                    "or is not a program",
                    126,
                )
            with path.open("rb") as file:
                head = file.read(256)
                if head[:4] == b"\x7fELF":
                    check_elf(program, file)
                    return program, arguments, name
        except OSError as error:
            raise QemuStartError(
                f"{program}: QEMU must read the file, but cannot: {error.strerror}"
            ) from error
        line = head[2:].split(b"\n")[0].strip(b" \t").replace(b"\t", b" ")
        if head[:2] != b"#!" or not line:
            break
        interpreter, *argument = (os.fsdecode(part.strip(b" ")) for part in line.split(b" ", 1))
        arguments = [interpreter, *argument, program, *arguments[1:]]
        program = interpreter
    raise RecordError(f"{program} is not an executable program", 126)


def qemu_for_request(request: RecordRequest, found: QemuInstallation | None) -> QemuInstallation:
    """Return `found`, or the installed QEMU if it is None. Raises UsageError, RecordError (125)."""
    if request.pids:
        raise UsageError("the QEMU back end cannot attach to running processes")
    answer = found or find_qemu()
    if isinstance(answer, str):
        raise RecordError(answer)
    return answer


def arguments_of_guest(pid: int) -> tuple[str, ...]:
    """Return the arguments of the program that a QEMU process runs; empty if they are unknown."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    except OSError:
        return ()
    # QEMU's own are: qemu -plugin FILE -0 ARGV0 PATH
    if words[3:4] != [b"-0"]:
        return ()
    return tuple(map(os.fsdecode, [*words[4:5], *words[6:]]))


class Guest(Protocol):
    """What QEMU runs."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the guest program or of QEMU."""

    @property
    def cwd(self) -> Path | str | None:
        """The working directory; None: ours."""

    @property
    def qemu_variables(self) -> list[str]:
        """Environment variables for QEMU itself, `NAME=VALUE`."""

    def command(self, qemu: Path, folder: str) -> list[str]:
        """Return the command of QEMU with the plugin in the recording folder."""

    def qemu_environment(self, folder: str) -> dict[str, str]:
        """Return the environment of the QEMU process, with the recording folder."""


@dataclass(frozen=True, slots=True)
class GuestProgram:
    """A program that can be started.

    `program`: its path; `arguments`: with argv[0]; `name`: of its first thread; `qemu_variables`:
    environment variables for QEMU itself, `NAME=VALUE`.
    """

    program: str
    arguments: list[str]
    name: str
    environment: Mapping[str, str]
    cwd: Path | str | None
    qemu_variables: list[str]

    @classmethod
    def from_request(cls, request: RecordRequest) -> Self:
        """Return the program of a request. Raises RecordError (125 to 127) if it cannot start."""
        environment = dict(os.environ if request.env is None else request.env)
        check_program(request.argv, env=environment, cwd=request.cwd)
        found = find_program(request.argv[0], environment)
        program, arguments, name = resolve_interpreter(found, request.argv, request.cwd)
        _check_privilege(Path(request.cwd or ".") / program)
        qemu_variables = [
            entry if "=" in entry else f"{entry}={os.environ[entry]}" for entry in request.qemu_env
        ]
        return cls(program, arguments, name, environment, request.cwd, qemu_variables)

    def command(self, qemu: Path, folder: str) -> list[str]:
        """Return the command of QEMU with the plugin in the recording folder."""
        path = self.program if not self.program.startswith("-") else f"./{self.program}"
        command = [str(qemu), "-plugin", f"{folder}/plugin.so", "-0", self.arguments[0], path]
        return [*command, *self.arguments[1:]]

    def qemu_environment(self, folder: str) -> dict[str, str]:
        """Return the environment of the QEMU process, with the recording folder `folder`."""
        # Python cannot start a program with an empty variable name.
        hidden = {
            f"RTIT_GUEST_{key}" if key.startswith(QEMU_ENVIRONMENT) or not key else key: value
            for key, value in self.environment.items()
        }
        return hidden | {
            "RTIT_QEMU_FOLDER": folder,
            "RTIT_QEMU_PROGRAM": str(Path(self.cwd or ".") / self.program),
            "RTIT_QEMU_COMM": os.fsdecode(os.fsencode(self.name)[:15]),
            "RTIT_QEMU_MASK": "0",
            "LD_PRELOAD": f"{folder}/plugin.so",
        }


def _check_privilege(program: Path) -> None:
    """Raise QemuStartError if the program is set-user-ID or set-group-ID and runs as root: single
    steps give it this privilege, QEMU cannot.
    """
    if os.geteuid() or os.statvfs(program).f_flag & os.ST_NOSUID:
        return
    found, both = program.stat(), stat.S_ISGID | stat.S_IXGRP
    if found.st_mode & stat.S_ISUID and found.st_uid:
        raise QemuStartError(f"{program} is set-user-ID, and QEMU cannot give it that privilege")
    if found.st_mode & both == both and found.st_gid != os.getegid():
        raise QemuStartError(f"{program} is set-group-ID, and QEMU cannot give it that privilege")


class QemuProcess:
    """A QEMU process with the plugin, the recording folder, and the socket to the plugin."""

    def __init__(self, installation: QemuInstallation, settings: str, guest: Guest) -> None:
        """Start QEMU; `settings` is the plugin's settings file. Raises QemuStartError."""
        self.qemu = installation.qemu
        self.folder = RecordingFolder()
        self.open_files = OpenFileLimit()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._prepare_folder(installation.plugin, settings, guest)
            self.process = self._start_qemu(guest)
        except BaseException:
            self._close()
            raise
        self.open_files.restore_in_child(self.process.pid)

    def abandon(self) -> None:
        """Kill the process and remove its files. May be called again."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _prepare_folder(self, plugin: Path, settings: str, guest: Guest) -> None:
        folder = Path(self.folder.name)
        try:
            (folder / "plugin.so").symlink_to(plugin.resolve())
            (folder / "settings").write_text(settings)
            (folder / "clock").write_bytes(bytes(4096))
            variables = b"".join(os.fsencode(entry) + b"\0" for entry in guest.qemu_variables)
            (folder / "qemu-env").write_bytes(variables)
            self.listener.bind(str(folder / "socket"))
        except OSError as error:
            raise temporary_folder_error(error) from error
        self.listener.listen(256)
        self.listener.setblocking(False)

    def _start_qemu(self, guest: Guest) -> subprocess.Popen[bytes]:
        folder = self.folder.name
        try:
            return subprocess.Popen(
                guest.command(self.qemu, folder),
                env=guest.qemu_environment(folder),
                cwd=guest.cwd,
                close_fds=False,
            )
        except OSError as error:
            raise QemuStartError(f"{self.qemu}: {error.strerror}") from error

    def _close(self) -> None:
        self.listener.close()
        self.open_files.close()
        self.folder.remove_folder()
