"""Where a verb writes what is no text for people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rtit.cli import out


def write(output: str | None, parts: Iterable[bytes]) -> None:
    """To a file, or to standard output: None or "-". Raises OSError."""
    if output is None or output == "-":
        out.octets(parts)
        return
    with Path(output).open("wb") as file:
        file.writelines(parts)
