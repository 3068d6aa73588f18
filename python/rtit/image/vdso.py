"""The vdso: code of the kernel in each process, an ELF file without a file."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from rtit.errors import ImageError

VDSO = "[vdso]"
_MOST = 1 << 20


class OwnVdso:
    """That of this process, as a file without a name."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._build_id: bytes | None = None
        content = _own()
        if content is None:
            return
        file = os.memfd_create("vdso", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, file)
        os.write(file, content)
        self._path = f"/proc/self/fd/{file}"
        from rtit._core import ElfFile

        try:
            self._build_id = ElfFile(self._path).build_id
        except ImageError:
            self._path = None

    def path_if(self, build_id: bytes) -> str | None:
        """Its path if this is its build id (padded with zeros or not)."""
        own = self._build_id
        same = own is not None and own.ljust(20, b"\0") == build_id.ljust(20, b"\0")
        return self._path if same else None


def _own() -> bytes | None:
    try:
        for line in Path("/proc/self/maps").read_bytes().splitlines():
            if line.endswith(VDSO.encode()):
                start, end = (int(number, 16) for number in line.split()[0].split(b"-"))
                with Path("/proc/self/mem").open("rb", buffering=0) as memory:
                    memory.seek(start)
                    return memory.read(min(end - start, _MOST))
    except (OSError, ValueError):
        pass
    return None
