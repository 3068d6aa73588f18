"""A stream that comes from no file: bytes, code and settings."""

from __future__ import annotations

from collections.abc import Iterator

from rtit.image import Image
from rtit.packets import encode
from rtit.trace import Settings, Stream

HEAD = (
    encode("PSB")
    + encode("TSC", tsc=1 << 20)
    + encode("CBR", ratio=10)
    + bytes([0x99, 1])  # MODE.Exec: 64-bit
    + encode("FUP", ip_bytes=6, payload=0x1000)
    + encode("PSBEND")
)


class Bytes:
    """A source in memory, given in parts of `step` bytes."""

    def __init__(self, data: bytes, step: int = 7) -> None:
        self._data = data
        self._step = step

    @property
    def size(self) -> int:
        return len(self._data)

    def parts(self) -> Iterator[memoryview]:
        for start in range(0, len(self._data), self._step):
            yield memoryview(self._data)[start : start + self._step]


def stream(packets: bytes, code: dict[int, str], **settings: int | bool) -> Stream:
    """`packets` behind a PSB+ whose FUP is 0x1000; `code` has hexadecimal text by address."""
    image = Image()
    for address, text in code.items():
        image.add(address, bytes.fromhex(text))
    return Stream(Bytes(HEAD + packets), image, Settings(**settings), tid=7, pid=7)  # type: ignore[arg-type]
