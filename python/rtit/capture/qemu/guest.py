"""The program that runs under QEMU, and in which environment."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rtit.capture.program import check_program, find_program
from rtit.capture.qemu.failure import QemuStartError
from rtit.capture.qemu.find import STEERING, Found, find_qemu
from rtit.capture.qemu.interpreter import resolve
from rtit.capture.request import Request
from rtit.errors import RecordError, UsageError


def fitting(request: Request, found: Found | None) -> Found:
    """The QEMU for a request; None: it is looked for. Raises UsageError, RecordError (125)."""
    if request.pids:
        raise UsageError("the QEMU back end attaches to no program that runs already")
    answer = found or find_qemu()
    if isinstance(answer, str):
        raise RecordError(answer)
    return answer


@dataclass(frozen=True, slots=True)
class Guest:
    """A program that can be started: where it is, its arguments with argv[0], its thread's name,
    its environment. `for_qemu` are variables of QEMU itself, `NAME=VALUE`.
    """

    program: str
    arguments: list[str]
    name: str
    environment: Mapping[str, str]
    cwd: Path | str | None
    for_qemu: list[str]

    @classmethod
    def of(cls, request: Request) -> Self:
        """Raises RecordError (exit codes 125, 126, 127) for what cannot be started."""
        environment = dict(os.environ if request.env is None else request.env)
        check_program(request.argv, env=environment, cwd=request.cwd)
        found = find_program(request.argv[0], environment)
        program, arguments, name = resolve(found, request.argv, request.cwd)
        _check_privilege(Path(request.cwd or ".") / program)
        for_qemu = [
            entry if "=" in entry else f"{entry}={os.environ[entry]}" for entry in request.qemu_env
        ]
        return cls(program, arguments, name, environment, request.cwd, for_qemu)

    def environment_of_qemu(self, folder: str) -> dict[str, str]:
        """The environment of the QEMU that runs it, whose recording is in `folder`."""
        # Python starts no program with an empty name in its environment.
        hidden = {
            f"RTIT_GUEST_{key}" if key.startswith(STEERING) or not key else key: value
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
    """Raise QemuStartError if single steps run the program with a privilege that QEMU cannot give:
    root's do.
    """
    if os.geteuid() or os.statvfs(program).f_flag & os.ST_NOSUID:
        return
    found, both = program.stat(), stat.S_ISGID | stat.S_IXGRP
    if found.st_mode & stat.S_ISUID and found.st_uid:
        raise QemuStartError(f"{program} is set-user-ID, and QEMU cannot give it that privilege")
    if found.st_mode & both == both and found.st_gid != os.getegid():
        raise QemuStartError(f"{program} is set-group-ID, and QEMU cannot give it that privilege")
