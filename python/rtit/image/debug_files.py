"""Separate debug files: where the symbols of a stripped file are kept.

They are looked for where gdb looks (its manual, "Debugging Information in Separate Files"): by
build id below /usr/lib/debug/.build-id, and by the name in .gnu_debuglink beside the file, in
.debug beside it, and below /usr/lib/debug.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.errors import ImageError

if TYPE_CHECKING:
    from rtit._core import ElfFile

FOLDER = "/usr/lib/debug"
_PART = 1 << 20


def debug_file(elf: ElfFile, recorded: str, symfs: str | None) -> ElfFile | None:
    """The debug file of `elf`, which was recorded as the file `recorded`; None if there is none
    that belongs to it. `symfs` is a folder that also holds debug folders.
    """
    build_id = elf.build_id
    for folder in _folders(symfs):
        if build_id is not None and len(build_id) > 1:
            name = build_id.hex()
            path = folder / ".build-id" / name[:2] / f"{name[2:]}.debug"
            found = opened_debug_file(path, build_id)
            if found is not None:
                return found
    if elf.debug_link is None:
        return None
    own = elf.path.stat()
    name_of_link, crc = elf.debug_link
    name = os.fsdecode(name_of_link)
    if "/" in name:
        return None
    for place in _beside(elf.path, recorded, name, symfs):
        found = _open(place)
        # The link of a file may name the file itself.
        if found is None or os.path.samestat(found.path.stat(), own):
            continue
        if found.build_id == build_id if build_id and found.build_id else _crc(place) == crc:
            return found
    return None


def opened_debug_file(path: str | os.PathLike[str], build_id: bytes) -> ElfFile | None:
    """The file at `path` if it has this build id."""
    found = _open(Path(path))
    return found if found is not None and found.build_id == build_id else None


def _folders(symfs: str | None) -> Iterator[Path]:
    if symfs is not None:
        yield Path(symfs) / FOLDER.lstrip("/")
    yield Path(FOLDER)


def _beside(path: Path, recorded: str, name: str, symfs: str | None) -> Iterator[Path]:
    yield path.parent / name
    yield path.parent / ".debug" / name
    for folder in _folders(symfs):
        for original in dict.fromkeys((Path(recorded), path)):
            if original.is_absolute():
                yield folder / original.parent.relative_to("/") / name


def _open(path: Path) -> ElfFile | None:
    from rtit._core import ElfFile

    try:
        return ElfFile(path) if path.is_file() else None
    except (ImageError, OSError, ValueError):
        return None


def _crc(path: Path) -> int | None:
    """CRC-32 of a file; None if it cannot be read."""
    crc = 0
    try:
        with path.open("rb") as file:
            while part := file.read(_PART):
                crc = zlib.crc32(part, crc)
    except OSError:
        return None
    return crc
