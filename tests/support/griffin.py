"""Items of logs of Griffin, by the structs of its kernel module."""

from __future__ import annotations

import struct

BUFFER, PROCESS, THREAD, IMAGE, XPAGE, UNMAP, FORK, SECTION = range(8)
PAGE = 4096
HEAD = struct.pack("<II", 0x51C0FFEE, 1)


def log_item(kind: int, *numbers: int, data: bytes = b"") -> bytes:
    """Return a struct pt_logitem_header (kind, total size), u64 fields, and data."""
    body = struct.pack(f"<{len(numbers)}Q", *numbers) + data
    return struct.pack("<II", kind, 8 + len(body)) + body
