"""The program that runs under QEMU: path, arguments and environment, after `#!` lines are resolved.

A script names its interpreter; the kernel follows up to five such lines. The checks raise, before
QEMU starts, the errors that starting the program directly would raise.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from rtit.capture.program import check_program, find_program
from rtit.capture.qemu.installation import (
    QEMU_ENVIRONMENT,
    QemuInstallation,
    QemuStartError,
    find_qemu,
)
from rtit.capture.request import RecordRequest
from rtit.errors import RecordError, UsageError

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
        raise RecordError(f"{program} cannot be executed: its ELF header is cut off", 126)
    if head[4:5] != b"\2" or head[18:20] != _MACHINE_X86_64.to_bytes(2, "little"):
        raise QemuStartError(
            f"{program} is not a 64-bit x86-64 program, and the QEMU back end runs no other"
        )
    kind = struct.unpack_from("<H", head, 16)[0]
    offset = struct.unpack_from("<Q", head, 32)[0]
    size, count = struct.unpack_from("<HH", head, 54)
    if kind not in _ELF_TYPES or size != _PROGRAM_HEADER or not 1 <= count <= _MAX_SEGMENTS:
        raise RecordError(f"{program} cannot be executed: it is an ELF file, not a program", 126)
    segments = _read_exactly(file, offset, count * _PROGRAM_HEADER)
    if segments is None:
        raise RecordError(f"{program} cannot be executed: its program headers are cut off", 126)
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
                    "or is no program",
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
