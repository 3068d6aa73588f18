"""Kernel modules from their files: relocatable objects, linked here to where they ran.

The places of a module's sections are taken from its names in kallsyms. As with the kernel's own
file, what loading patches in beside relocations is not there, but for the function tracer.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rtit.errors import ImageError, unreadable_image
from rtit.image.files import Files
from rtit.image.image import Image
from rtit.image.kept import Problem
from rtit.image.kernel.kallsyms import Kallsym
from rtit.image.kernel.relocate import Module
from rtit.image.kernel.sources import KernelFiles
from rtit.image.mappings import Mapping

_SUFFIX = re.compile(r"\.ko(\.(gz|xz|zst))?$")
UNKNOWN = "the module's code is not known"
_MOST = 1 << 26
_MOST_FILES = 1 << 15
_MOST_TIMES = 16
_MOST_CODE = 1 << 28
"""So often a module is loaded anew, and bytes of code of all: a file can tell of any number."""
_TOO_OFTEN = "modules are loaded more often than real ones are: the code of later ones is not known"
_PART = 1 << 20
_COMPRESSED: dict[str, Callable[[str, str], Any]] = {".gz": gzip.open, ".xz": lzma.open}


def module_name(path: str) -> str:
    """As the kernel calls the module in a file, or in brackets."""
    base = path.rpartition("/")[2].removeprefix("[").removesuffix("]")
    return _SUFFIX.sub("", base).replace("-", "_")


class Modules:
    """Modules in the folder of `sources`; without one where they were recorded, by the rules of
    `files`, which has none of guests. `symbols` are those of the kernel and all modules.
    """

    def __init__(
        self, sources: KernelFiles, files: Files | None, symbols: Sequence[Kallsym]
    ) -> None:
        self._folder = sources.modules
        self._known = {each.path: each for each in sources.problems}
        self._files = files
        self._symbols = symbols
        self._times: Counter[str] = Counter()
        self._code = 0
        self.used: dict[str, str] = {}
        """Files that have been loaded, by how they are to be called in a folder like this."""

    def load(self, image: Image, mapping: Mapping, own: Sequence[Kallsym]) -> Problem | None:
        """Put the code of what is mapped, with its `own` symbols, into the image; why it is not
        known if it is not.
        """
        path = mapping.path
        real = self._find(path)
        if real is None:
            return self._known.get(path) or Problem("missing", path, UNKNOWN)
        self._times[real] += 1
        if self._times[real] > _MOST_TIMES or self._code > _MOST_CODE:
            return Problem("unreadable", path, _TOO_OFTEN)
        try:
            module = Module(_read(real), real)
            wanted = mapping.build_id
            if wanted is None and self._files is not None:
                wanted = self._files.build_id(path)
            has = module.build_id
            if wanted and any(wanted) and wanted.ljust(20, b"\0") != (has or b"").ljust(20, b"\0"):
                text = f"has build id {has.hex()}" if has else "has no build id"
                return Problem("changed", path, f"{real} {text}, recorded was {wanted.hex()}")
            pieces = module.linked(mapping.start, own, self._addresses)
        except ImageError as error:
            return Problem("unreadable", path, str(error))
        for address, code in pieces:
            image.native.map(mapping.since, address, code)
            self._code += len(code)
        suffix = _SUFFIX.search(real)
        name = module_name(path) + (suffix[0] if suffix is not None else ".ko")
        self.used[f"modules/{name}"] = real
        return None

    def _find(self, path: str) -> str | None:
        if self._folder is not None:
            return self._there.get(module_name(path))
        if self._files is None or not path.startswith("/"):
            return None
        real = self._files.place(path)
        return real if real is not None and Path(real).is_file() else None

    @cached_property
    def _addresses(self) -> dict[str, int]:
        """Of all symbols; of several of a name that of the first."""
        return {row.name: row.address for row in reversed(self._symbols)}

    @cached_property
    def _there(self) -> dict[str, str]:
        """The files of the folder, by the names of modules."""
        return _modules_in(self._folder) if self._folder is not None else {}


def _modules_in(folder: str) -> dict[str, str]:
    found: dict[str, str] = {}
    looked = 0
    for place, _, names in os.walk(folder):
        for name in names:
            looked += 1
            if _SUFFIX.search(name):
                found.setdefault(module_name(name), os.path.join(place, name))  # noqa: PTH118
        if looked > _MOST_FILES:
            break
    return found


def _read(path: str) -> bytes:
    """A module's bytes, unpacked. Raises ImageError."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ImageError("not a regular file", source=path)
        if path.endswith(".zst"):
            return _unzstd(path)
        opened = _COMPRESSED.get(Path(path).suffix, open)
        with opened(path, "rb") as file:
            data: bytes = file.read(_MOST + 1)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise unreadable_image(error, path) from error
    if len(data) > _MOST:
        raise ImageError(f"more than {_MOST:,} bytes of a module", source=path)
    return data


def _unzstd(path: str) -> bytes:
    """Raises ValueError for what is no Zstandard, or more than a module."""
    from rtit._core import unzstd

    data = bytearray()
    with Path(path).open("rb") as file:
        unzstd(iter(lambda: file.read(_PART), b""), data.extend, _MOST)
    return bytes(data)
