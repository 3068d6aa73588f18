"""Programs with bad headers are refused, and the error names the bad part."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rtit.capture.qemu.qemu_process import check_elf
from rtit.errors import RecordError


@pytest.mark.parametrize("offset", [121, 1 << 40, (1 << 61) + 1, (1 << 63) - 1, (1 << 64) - 1])
def test_program_headers_beyond_end_of_file_are_reported_truncated(
    offset: int, tmp_path: Path
) -> None:
    """Of an offset that no file of a file system can have, too."""
    head = b"\x7fELF\2\1\1".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, offset, 0, 0, 64, 56, 1, 0, 0, 0)
    path = tmp_path / "program"
    path.write_bytes(head.ljust(120, b"\0"))
    with path.open("rb") as file, pytest.raises(RecordError, match="headers are truncated"):
        check_elf("program", file)
