"""Output files, which appear whole or not at all."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO

from rtit.capture.output_files import NamedFile
from rtit.cli import output


def add_output(group: argparse._ArgumentGroup) -> None:
    """Declare -o."""
    group.add_argument(
        "-o", "--output", metavar="FILE", help="File to write (default: standard output)"
    )


def add_dso(group: argparse._ArgumentGroup, default: str) -> None:
    """Declare --dso; `default` describes which binaries are used without it."""
    group.add_argument(
        "--dso",
        action="append",
        default=[],
        metavar="NAME",
        help="Only this binary, by name or path; may be repeated; all: every one "
        f"(default: {default})",
    )


def write(name: str | None, parts: Iterable[bytes]) -> None:
    """Write a file as a whole, or to standard output for None or "-". Raises OSError."""
    if name is None or name == "-":
        output.write_bytes(parts)
        return
    with atomic_file(name) as file:
        file.writelines(parts)


@contextlib.contextmanager
def atomic_file(name: str, *, private: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write; an existing file stays as it is until all has been written.

    `private`: only the owner may read a new file. Raises OSError.
    """
    path = Path(name).resolve()
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    # /dev/stdout may be a file that another process has open
    if name.startswith(("/dev/", "/proc/")) or (path.exists() and not path.is_file()):
        number = os.open(name, flags | os.O_TRUNC, 0o666)
        with BufferedWriter(NamedFile(number, name)) as file:
            yield file
        return
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        number = os.open(beside, flags | os.O_EXCL, 0o600 if private else 0o666)
    except OSError as error:
        error.filename = name
        raise
    try:
        with BufferedWriter(NamedFile(number, name)) as file:
            yield file
        if path.exists():
            shutil.copymode(path, beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
