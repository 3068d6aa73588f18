"""HEADER_BPF_PROG_INFO: the BPF programs that were loaded, with the code that they became.

Each is what perf's `struct perf_bpil` holds: sizes, a `struct bpf_prog_info` (include/uapi/linux/
bpf.h), and its arrays, to which its pointers are offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .cursor import Cursor

_U32 = struct.Struct("<I")
_HEAD = struct.Struct("<IIQ")
_CODE = struct.Struct("<16xI4xQ")
_FUNCTIONS = struct.Struct("<104xIIQQ")
_NEEDED = 1 << 0 | 1 << 3 | 1 << 4
"""The arrays with code, addresses and lengths of functions."""
_MOST = 1 << 16


def bpf_code(at: Cursor) -> Iterator[tuple[int, bytes]]:
    """(kernel address, code) of each function of each program. Raises PerfDataError where it ends
    within one.
    """
    count = at.unpack(_U32)[0]
    if count > _MOST:
        raise at.fail(f"more than {_MOST} BPF programs", count)
    for _ in range(count):
        info_size, size, arrays = at.unpack(_HEAD)
        info, data = bytes(at.take(info_size)), bytes(at.take(size))
        if len(info) < _FUNCTIONS.size or arrays & _NEEDED != _NEEDED:
            continue
        length, code = _CODE.unpack_from(info)
        functions, lengths, addresses, sizes = _FUNCTIONS.unpack_from(info)
        number = min(functions, lengths, len(data) // 4)
        if code + length > len(data) or addresses + 8 * number > len(data):
            continue
        if sizes + 4 * number > len(data):
            continue
        place = code
        view = memoryview(data)
        for (address,), (part,) in zip(
            struct.iter_unpack("<Q", view[addresses : addresses + 8 * number]),
            struct.iter_unpack("<I", view[sizes : sizes + 4 * number]),
            strict=True,
        ):
            if place + part > code + length:
                break
            yield address, data[place : place + part]
            place += part
