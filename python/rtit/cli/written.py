"""Where a verb writes what is no text for people."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO

from rtit.capture.named_file import NamedFile
from rtit.cli import out


def add_output(parser: argparse.ArgumentParser) -> None:
    """Where to write it."""
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="where to write it (default: standard output)"
    )


def add_dso(parser: argparse.ArgumentParser, default: str) -> None:
    """Of which binaries; `default` says of which without the option."""
    parser.add_argument(
        "--dso",
        action="append",
        default=[],
        metavar="NAME",
        help="of this binary, by name or path; may be repeated; all: of every one; "
        f"default: {default}",
    )


def write(output: str | None, parts: Iterable[bytes]) -> None:
    """To a file, or to standard output: None or "-". A file that is there stays as it is until all
    has been written. Raises OSError.
    """
    if output is None or output == "-":
        out.octets(parts)
        return
    with whole(output) as file:
        file.writelines(parts)


@contextlib.contextmanager
def whole(output: str, *, private: bool = False) -> Iterator[BinaryIO]:
    """A file to write to; one that is there stays as it is until all has been written. `private`:
    one that is new is for its owner alone. Raises OSError.
    """
    path = Path(output).resolve()
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    # /dev/stdout may be a file that somebody else has open
    if output.startswith(("/dev/", "/proc/")) or (path.exists() and not path.is_file()):
        number = os.open(output, flags | os.O_TRUNC, 0o666)
        with BufferedWriter(NamedFile(number, output)) as file:
            yield file
        return
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        number = os.open(beside, flags | os.O_EXCL, 0o600 if private else 0o666)
    except OSError as error:
        error.filename = output
        raise
    try:
        with BufferedWriter(NamedFile(number, output)) as file:
            yield file
        if path.exists():
            shutil.copymode(path, beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
