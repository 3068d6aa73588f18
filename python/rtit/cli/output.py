"""Writes all output: text with control characters escaped, JSON, bytes, and files that appear whole
or not at all.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatch
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO, TextIO

from rtit.errors import UsageError
from rtit.text_escaping import escape_control_characters, format_json, iterate_json


def print_line(text: str = "", *, to: TextIO | None = None) -> None:
    """Print one line to standard output, or to another text stream."""
    stream = sys.stdout if to is None else to
    stream.write(escape_control_characters(text, stream.encoding or "utf-8") + "\n")


_COLOURS = {"hot": "31", "warm": "32", "source": "34", "note": "2", "title": "1"}
"""Parameters of SGR, by style."""


def print_styled_line(spans: Iterable[tuple[str, str]]) -> None:
    """Print one line of (text, style) to standard output: with colours on a terminal, unless
    NO_COLOR is set.
    """
    stream = sys.stdout
    colours = _COLOURS if stream.isatty() and not os.environ.get("NO_COLOR") else {}
    for text, style in spans:
        shown = escape_control_characters(text, stream.encoding or "utf-8")
        stream.write(f"\x1b[{colours[style]}m{shown}\x1b[m" if style in colours else shown)
    stream.write("\n")


def print_error(command: str, text: str, next_step: str = "") -> None:
    """Print `rtit COMMAND: text` to standard error, and the next step, if any, indented below.

    URLs in the text are printed without passwords and tokens.
    """
    from rtit.remote_files import without_credentials

    text = without_credentials(text)
    name = f"rtit {command}" if command else "rtit"
    print_line(f"{name}: {text}", to=sys.stderr)
    for line in next_step.splitlines():
        print_line(f"  {line}", to=sys.stderr)


def write_json(value: object, *, indent: int | None = None) -> None:
    """Write one JSON value to standard output, in ASCII.

    Bytes of names that are not UTF-8 appear as U+DC80 to U+DCFF, as in Python. An indented value is
    written while it is made; collections in it become lists.
    """
    if indent is None:
        sys.stdout.write(format_json(value) + "\n")
        return
    sys.stdout.writelines(iterate_json(value, indent, _JsonListView))
    sys.stdout.write("\n")


class _JsonListView(list[object]):
    """A collection as the list that `json` asks for; `iterencode` uses its length and iterator."""

    def __init__(self, items: Collection[object]) -> None:
        super().__init__()
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[object]:
        return iter(self._items)


def write_lines(text: bytes) -> None:
    """Write whole lines of UTF-8 from native code, which has escaped the names in them."""
    stream = sys.stdout
    if not text.isascii() and (stream.encoding or "utf-8").lower() != "utf-8":
        text = text.decode().encode(stream.encoding, "backslashreplace")
    stream.flush()
    stream.buffer.write(text)


def write_bytes(parts: Iterable[bytes]) -> None:
    """Write a file for another tool to standard output."""
    flush_output()
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


def flush_output() -> None:
    """Write buffered output, so that it precedes the output of other processes."""
    sys.stdout.flush()


def discard_unwritable_output() -> None:
    """Drop buffered output that cannot be written: the interpreter would try again at its end."""
    try:
        flush_output()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_file_or_stdout(name: str | None, parts: Iterable[bytes]) -> None:
    """Write a file as a whole, or to standard output for None or "-". Raises OSError."""
    if name is None or name == "-":
        write_bytes(parts)
        return
    with atomic_file(name) as file:
        file.writelines(parts)


def write_folder(
    name: str, files: Iterable[tuple[str, bytes]], *, replaces: tuple[str, ...]
) -> None:
    """Write a folder of files as a whole, from the names of the files and their contents.

    Replaces a folder and raises as `atomic_folder`.
    """
    with atomic_folder(name, replaces=replaces) as folder:
        for file, content in files:
            (folder / file).write_bytes(content)


@contextlib.contextmanager
def atomic_folder(name: str, *, replaces: tuple[str, ...]) -> Iterator[Path]:
    """Make a folder to write files into; it has its name after all have been written.

    An older folder is replaced if each file below it matches one of the patterns `replaces`. Raises
    UsageError for a folder with other files, OSError.
    """
    import shutil

    path = Path(name).resolve()
    if path.is_dir():
        for each in path.rglob("*"):
            matches = any(fnmatch(each.name, pattern) for pattern in replaces)
            if not matches and (each.is_symlink() or not each.is_dir()):
                raise UsageError(f"{name} has other files, such as {each.name}: give a new folder")
    elif path.exists():
        raise UsageError(f"{name} is a file: give the name of a folder")
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        beside.mkdir()
    except OSError as error:
        error.filename = name
        raise
    try:
        yield beside
        if path.exists():
            shutil.rmtree(path)
        beside.rename(path)
    except BaseException:
        shutil.rmtree(beside)
        raise


def _is_recording(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(8) == b"PERFILE2"
    except OSError:
        return False


@contextlib.contextmanager
def atomic_file(name: str, *, private: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write; an existing file stays as it is until all has been written.

    `private`: only the owner may read a new file. Raises OSError, and UsageError for a recording,
    which is never replaced.
    """
    import shutil

    from rtit.capture.output_files import NamedFile

    path = Path(name).resolve()
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    # /dev/stdout may be a file that another process has open
    if name.startswith(("/dev/", "/proc/")) or (path.exists() and not path.is_file()):
        number = os.open(name, flags | os.O_TRUNC, 0o666)
        with BufferedWriter(NamedFile(number, name)) as file:
            yield file
        return
    if _is_recording(path):
        raise UsageError(f"{name} is a recording and is not replaced: name another output file")
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
