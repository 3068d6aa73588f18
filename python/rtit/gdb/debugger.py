"""The gdb that is installed here: what it can, and how it is started."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rtit.errors import UnsupportedError, UsageError

_SCRIPT = Path(__file__).with_name("callers_in_gdb.py")

_FIRST = ("-iex", "set sysroot /", "-iex", "set remotetimeout 3600")
"""Before anything else. An answer may take decoding a whole stream; gdb would take one that comes
after two seconds for that to its next question.
"""


@dataclass(frozen=True, slots=True)
class Debugger:
    """`words` start it. `has_pt`: it was built with libipt; `has_python`: with its Python."""

    words: tuple[str, ...]
    has_pt: bool
    has_python: bool

    def command(
        self, socket: str, program: str | None, commands: Sequence[str], *, batch: bool
    ) -> list[str]:
        """To talk to the server at this socket about this program, and to begin with commands."""
        words = [*self.words, "-q", *_FIRST, "-ex", f"target remote {socket}"]
        if self.has_python:
            words += ["-x", str(_SCRIPT)]
        words += [word for each in commands for word in ("-ex", each)]
        return [*words, *(["-batch"] if batch else []), *([program] if program else [])]


def find_gdb(command: str = "gdb") -> Debugger:
    """Look for gdb and ask it what it can; `command` may have options, as a shell takes them.

    Raises UnsupportedError if it is not there, or knows no XML, in which traces come; UsageError
    if `command` is no command.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--gdb {command!r}: {error}") from None
    if not words or not words[0]:
        raise UsageError(f"--gdb {command!r} names no program")
    name, *more = words
    path = shutil.which(name)
    if path is None:
        raise UnsupportedError(
            f"{name} is not installed; --listen serves one that is elsewhere (Debian: gdb)"
        )
    try:
        asked = subprocess.run(
            [path, "-nx", "--configuration"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"{path} cannot be run: {error}") from error
    options = asked.stdout.split()
    if "--without-expat" in options:
        raise UnsupportedError(f"{path} was built without expat: it cannot read a trace")
    return Debugger(
        (path, *more),
        has_pt="--with-intel-pt" in options,
        has_python="--without-python" not in options and "--with-python" in asked.stdout,
    )
