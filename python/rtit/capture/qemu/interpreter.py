"""Which program runs in the end: what `#!` lines name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rtit.capture.qemu.elf_head import check_elf
from rtit.capture.qemu.failure import QemuStartError
from rtit.errors import RecordError

_SCRIPTS = 5


def resolve(
    program: str, argv: Sequence[str], cwd: Path | str | None
) -> tuple[str, list[str], str]:
    """Follow `#!` lines: the program to run, its arguments with argv[0], its thread's name.

    Raises RecordError (126) for what is no program, QemuStartError for what QEMU alone cannot run.
    """
    name = Path(program).name
    arguments = [os.fspath(argument) for argument in argv]
    asked = program
    for _ in range(1 + _SCRIPTS):
        path = Path(cwd or ".") / program
        try:
            is_interpreter = program != asked
            if is_interpreter and not (path.is_file() and os.access(path, os.X_OK)):
                raise RecordError(
                    f"{asked}: cannot be executed: its interpreter {program} does not exist "
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
                f"{program}: cannot be read, which QEMU has to: {error.strerror}"
            ) from error
        line = head[2:].split(b"\n")[0].strip(b" \t").replace(b"\t", b" ")
        if head[:2] != b"#!" or not line:
            break
        interpreter, *argument = (os.fsdecode(part.strip(b" ")) for part in line.split(b" ", 1))
        arguments = [interpreter, *argument, program, *arguments[1:]]
        program = interpreter
    raise RecordError(f"{program} is no program that can be executed", 126)
