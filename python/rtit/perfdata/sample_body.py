"""What a SAMPLE has behind its fixed fields: parts that say how long they are, or whose event does.

Source: perf_event_open(2), PERF_RECORD_SAMPLE; the parts are in the order of the table here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from .attr import Attr, SampleType

_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_ENABLED, _RUNNING, _ID, _GROUP, _LOST = (1 << bit for bit in range(5))
_HW_INDEX, _COUNTERS = 1 << 17, 1 << 19
_ENTRY = 24
"""Bytes of an entry of a branch stack."""

_Size = Callable[[Attr, memoryview], int]
"""Bytes of a part that begins a memory; raises struct.error where that ends."""


def _read(attr: Attr, data: memoryview) -> int:
    shape = attr.read_format
    times = bool(shape & _ENABLED) + bool(shape & _RUNNING)
    each = 1 + bool(shape & _ID) + bool(shape & _LOST)
    count = _U64.unpack_from(data)[0] if shape & _GROUP else 1
    return 8 * (bool(shape & _GROUP) + times + count * each)


def _callchain(_: Attr, data: memoryview) -> int:
    return 8 + 8 * int(_U64.unpack_from(data)[0])


def _raw(_: Attr, data: memoryview) -> int:
    return 4 + int(_U32.unpack_from(data)[0])


def _branches(attr: Attr, data: memoryview) -> int:
    count = int(_U64.unpack_from(data)[0])
    more = 8 * bool(attr.branch_sample_type & _HW_INDEX)
    counters = 8 * count if attr.branch_sample_type & _COUNTERS else 0
    return 8 + more + _ENTRY * count + counters


def _registers(mask: int, data: memoryview) -> int:
    return 8 + 8 * mask.bit_count() * bool(_U64.unpack_from(data)[0])


def _registers_user(attr: Attr, data: memoryview) -> int:
    return _registers(attr.sample_regs_user, data)


def _registers_intr(attr: Attr, data: memoryview) -> int:
    return _registers(attr.sample_regs_intr, data)


def _stack(_: Attr, data: memoryview) -> int:
    size = int(_U64.unpack_from(data)[0])
    return 16 + size if size else 8


def _one(_: Attr, _data: memoryview) -> int:
    return 8


def _aux(_: Attr, data: memoryview) -> int:
    return 8 + int(_U64.unpack_from(data)[0])


_PARTS: tuple[tuple[int, _Size], ...] = (
    (SampleType.READ, _read),
    (SampleType.CALLCHAIN, _callchain),
    (SampleType.RAW, _raw),
    (SampleType.BRANCH_STACK, _branches),
    (SampleType.REGS_USER, _registers_user),
    (SampleType.STACK_USER, _stack),
    (SampleType.WEIGHT | SampleType.WEIGHT_STRUCT, _one),
    (SampleType.DATA_SRC, _one),
    (SampleType.TRANSACTION, _one),
    (SampleType.REGS_INTR, _registers_intr),
    (SampleType.PHYS_ADDR, _one),
    (SampleType.CGROUP, _one),
    (SampleType.DATA_PAGE_SIZE, _one),
    (SampleType.CODE_PAGE_SIZE, _one),
    (SampleType.AUX, _aux),
)


def part(attr: Attr, kind: SampleType, body: memoryview) -> memoryview | None:
    """The part `kind` of a SAMPLE of the event `attr`, with its own size; `body` begins behind the
    period. None if it is not there, or if the parts do not fit.
    """
    at = 0
    for number, size_of in _PARTS:
        if not attr.sample_type & number:
            continue
        try:
            size = size_of(attr, body[at:])
        except struct.error:
            return None
        if at + size > len(body):
            return None
        if number & kind:
            return body[at : at + size]
        at += size
    return None


def aux_data(attr: Attr, body: memoryview) -> memoryview | None:
    """The AUX data of a SAMPLE; None without any."""
    found = part(attr, SampleType.AUX, body)
    return found[_U64.size :] if found is not None and len(found) > _U64.size else None


def raw_data(attr: Attr, body: memoryview) -> memoryview | None:
    """The raw data of a SAMPLE of a tracepoint; None without any."""
    found = part(attr, SampleType.RAW, body)
    return found[_U32.size :] if found is not None else None
