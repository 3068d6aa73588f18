"""Packet streams that are made in memory: a PSB+ to begin with, and `Stream`s of bytes and code."""

from __future__ import annotations

from collections.abc import Iterator

from rtit.image import Image
from rtit.packets import encode
from rtit.trace import Settings, Stream

SYNC = (
    encode("PSB")
    + encode("TSC", tsc=1 << 20)
    + encode("CBR", ratio=10)
    + bytes([0x99, 1])  # MODE.Exec: 64-bit
    + encode("FUP", ip_bytes=6, payload=0x1000)
    + encode("PSBEND")
)
"""A PSB+ in 64-bit mode with TSC 1 << 20 at IP 0x1000."""


class ChunkedBytes:
    """A source of bytes in memory that hands them out in chunks of `step` bytes."""

    def __init__(self, data: bytes, step: int = 7) -> None:
        self._data = data
        self._step = step

    @property
    def size(self) -> int:
        return len(self._data)

    def chunks(self) -> Iterator[memoryview]:
        for start in range(0, len(self._data), self._step):
            yield memoryview(self._data)[start : start + self._step]


def make_stream(packets: bytes, code: dict[int, str], **settings: int | bool) -> Stream:
    """Return the stream of `SYNC` and `packets`; `code` maps addresses to hexadecimal text."""
    image = Image()
    for address, text in code.items():
        image.add(address, bytes.fromhex(text))
    return Stream(ChunkedBytes(SYNC + packets), image, Settings(**settings), tid=7, pid=7)  # type: ignore[arg-type]
