"""The installed gdb: its capabilities and its command line."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rtit.errors import UnsupportedError, UsageError

_SCRIPT = Path(__file__).with_name("gdb_unwinder.py")

_SETTINGS = ("-iex", "set sysroot /", "-iex", "set remotetimeout 3600")
"""First commands of gdb. A reply may take as long as decoding a stream; with the default timeout of
two seconds gdb would match it to its next request.
"""


@dataclass(frozen=True, slots=True)
class GdbCommand:
    """A gdb: its command line, and its capabilities."""

    argv: tuple[str, ...]
    has_libipt: bool
    """Whether it can decode PT packets."""
    has_python: bool
    """Whether it runs Python scripts."""

    def command_line(
        self, socket: str, program: str | None, commands: Sequence[str], *, batch: bool
    ) -> list[str]:
        """Return the command line of a gdb that connects to the socket and runs the commands."""
        words = [*self.argv, "-q", *_SETTINGS, "-ex", f"target remote {socket}"]
        if self.has_python:
            words += ["-x", str(_SCRIPT)]
        words += [word for each in commands for word in ("-ex", each)]
        return [*words, *(["-batch"] if batch else []), *([program] if program else [])]


def find_gdb(command: str = "gdb") -> GdbCommand:
    """Return the gdb that `command` names; the command may have options, in shell syntax.

    Raises UnsupportedError if gdb is not installed or was built without XML, which traces need;
    UsageError if `command` names no program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--gdb {command!r}: {error}") from None
    if not words or not words[0]:
        raise UsageError(f"--gdb {command!r} names no program")
    name, *options = words
    path = shutil.which(name)
    if path is None:
        raise UnsupportedError(
            f"{name} is not installed (Debian: gdb); with --listen, a gdb on another machine can "
            "connect"
        )
    try:
        result = subprocess.run(
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
    configuration = result.stdout.split()
    if "--without-expat" in configuration:
        raise UnsupportedError(f"{path} was built without expat: it cannot read a trace")
    return GdbCommand(
        (path, *options),
        has_libipt="--with-intel-pt" in configuration,
        has_python="--without-python" not in configuration and "--with-python" in result.stdout,
    )
