"""Whether the kernel would execute an ELF file: as much as it looks at before it decides."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from rtit.capture.qemu.failure import QemuStartError
from rtit.errors import RecordError

_MACHINE_X86_64 = 62
_TYPES = (2, 3)  # ET_EXEC, ET_DYN
_PT_INTERP = 3
_SEGMENT = 56
_MOST = 65536 // _SEGMENT
"""The kernel takes no more than 64 KiB of program headers."""


def check_elf(program: str, file: BinaryIO) -> None:
    """Raise RecordError (126) unless `file` is a whole header of a program whose loader exists,
    QemuStartError unless it is a 64-bit x86-64 program.
    """
    file.seek(0)
    head = file.read(64)
    if len(head) < 64:
        raise RecordError(f"{program} cannot be executed: its ELF header is cut off", 126)
    if head[4:5] != b"\2" or head[18:20] != _MACHINE_X86_64.to_bytes(2, "little"):
        raise QemuStartError(
            f"{program} is no 64-bit x86-64 program: the QEMU back end runs no other"
        )
    kind = struct.unpack_from("<H", head, 16)[0]
    offset = struct.unpack_from("<Q", head, 32)[0]
    size, count = struct.unpack_from("<HH", head, 54)
    if kind not in _TYPES or size != _SEGMENT or not 1 <= count <= _MOST:
        raise RecordError(f"{program} cannot be executed: it is an ELF file, but no program", 126)
    segments = _read(file, offset, count * _SEGMENT)
    if segments is None:
        raise RecordError(f"{program} cannot be executed: its program headers are cut off", 126)
    for segment in struct.iter_unpack("<IIQQQQQQ", segments):
        kind, _, at, _, _, length, _, _ = segment
        if kind != _PT_INTERP:
            continue
        loader = _read(file, at, min(length, 4096))
        path = os.fsdecode((loader or b"").split(b"\0")[0])
        if not path or not Path(path).is_file():
            raise RecordError(
                f"{program} cannot be executed: its loader {path} does not exist", 126
            )
        return


def _read(file: BinaryIO, offset: int, size: int) -> bytes | None:
    if offset >= os.fstat(file.fileno()).st_size:
        return None
    file.seek(offset)
    data = file.read(size)
    return data if len(data) == size else None
