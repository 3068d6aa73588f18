"""Separate debug files, which have the symbols of stripped files: on this machine or on servers.

`find_debug_file` looks where gdb looks (its manual, "Debugging Information in Separate Files"): by
build id below /usr/lib/debug/.build-id, and by the name in .gnu_debuglink next to the file, in
.debug there, and below /usr/lib/debug.

`Debuginfod` downloads files by build id, only on request. The protocol and the cache are those of
elfutils' client (debuginfod(8), debuginfod-find(1)): GET URL/buildid/HEX/executable or /debuginfo;
the cache has HEX/executable and HEX/debuginfo.
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
_CRC_CHUNK = 1 << 20


def find_debug_file(elf: ElfFile, recorded: str, symfs: str | None) -> ElfFile | None:
    """Return the debug file that belongs to `elf`; None if there is none.

    `recorded` is the recorded path of `elf`; `symfs` is a folder that can have debug folders too.
    """
    build_id = elf.build_id
    for folder in _debug_folders(symfs):
        if build_id is not None and len(build_id) > 1:
            name = build_id.hex()
            path = folder / ".build-id" / name[:2] / f"{name[2:]}.debug"
            found = open_if_build_id(path, build_id)
            if found is not None:
                return found
    if elf.debug_link is None:
        return None
    status = elf.path.stat()
    name_of_link, crc = elf.debug_link
    name = os.fsdecode(name_of_link)
    if "/" in name:
        return None
    for path in _paths_by_debug_link(elf.path, recorded, name, symfs):
        found = _open_elf_file(path)
        # The link of a file can name the file itself.
        if found is None or os.path.samestat(found.path.stat(), status):
            continue
        if (
            found.build_id == build_id
            if build_id and found.build_id
            else _compute_file_crc32(path) == crc
        ):
            return found
    return None


def open_if_build_id(path: str | os.PathLike[str], build_id: bytes) -> ElfFile | None:
    """Return the file at `path` if it has this build id, else None."""
    found = _open_elf_file(Path(path))
    return found if found is not None and found.build_id == build_id else None


def _debug_folders(symfs: str | None) -> Iterator[Path]:
    if symfs is not None:
        yield Path(symfs) / FOLDER.lstrip("/")
    yield Path(FOLDER)


def _paths_by_debug_link(path: Path, recorded: str, name: str, symfs: str | None) -> Iterator[Path]:
    yield path.parent / name
    yield path.parent / ".debug" / name
    for folder in _debug_folders(symfs):
        for original in dict.fromkeys((Path(recorded), path)):
            if original.is_absolute():
                yield folder / original.parent.relative_to("/") / name


def _open_elf_file(path: Path) -> ElfFile | None:
    from rtit._core import ElfFile

    try:
        return ElfFile(path) if path.is_file() else None
    except (ImageError, OSError, ValueError):
        return None


def _compute_file_crc32(path: Path) -> int | None:
    """CRC-32 of a file; None if it cannot be read."""
    crc = 0
    try:
        with path.open("rb") as file:
            while block := file.read(_CRC_CHUNK):
                crc = zlib.crc32(block, crc)
    except OSError:
        return None
    return crc
