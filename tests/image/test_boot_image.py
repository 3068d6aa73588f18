"""What is no boot image of a kernel is refused. A booted kernel has the symbols that are read:
`tests/end_to_end/test_system_boot.py`.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from rtit._core import unlz4
from rtit.errors import ImageError
from rtit.image.kernel.boot_image import BootImage

PAYLOAD = 2048


def boot_image(path: Path, payload: bytes) -> Path:
    """Write a bzImage with a setup of three sectors."""
    image = bytearray(PAYLOAD)
    image[0x1F1] = 3
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, 0, len(payload))
    path.write_bytes(image + payload)
    return path


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"\x7fELF", "unknown compression"),
        (b"\x1f\x8b" + bytes(20), "cannot be decompressed"),
        (bytes.fromhex("02214c18ff"), "unknown compression"),
        (zlib.compress(b"\x7fELF", wbits=31), "not a whole ELF file"),
    ],
)
def test_payload_that_is_no_kernel_is_refused(payload: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=message):
        BootImage(boot_image(tmp_path / "image", payload))


def test_other_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\x7fELF" + bytes(2000))
    with pytest.raises(ImageError, match="not a Linux boot image"):
        BootImage(tmp_path / "image")


def test_lz4_frame_is_decompressed_up_to_a_limit() -> None:
    # "ab", 15 + 4 + 1 bytes from 2 bytes before, then "cdefg"
    block = b"\x2fab\x02\x00\x01\x50cdefg"
    # the size of the contents follows the frame in a kernel
    frame = (
        bytes.fromhex("02214c18") + struct.pack("<I", len(block)) + block + struct.pack("<I", 27)
    )
    assert unlz4(frame, 27) == 11 * b"ab" + b"cdefg"
    with pytest.raises(ValueError, match="no LZ4 frame of at most 26 bytes"):
        unlz4(frame, 26)
    with pytest.raises(ValueError, match="no LZ4 frame of at most 27 bytes"):
        unlz4(frame[1:], 27)
