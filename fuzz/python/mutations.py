"""Changed copies of good inputs, as of truncated, patched or forged files."""

from __future__ import annotations

import random
from collections.abc import Sequence

_INTERESTING = (0, 1, 2, 7, 8, 16, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF)
_INTERESTING_64 = (1 << 32, (1 << 47) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_SIZES = (1, 2, 4, 8)


class Mutator:
    """Makes inputs of at most `limit` bytes from `seeds` and inputs that `keep` adds.

    The same seeds and the same `number` give the same inputs.
    """

    def __init__(self, seeds: Sequence[bytes], limit: int, number: int) -> None:
        self._random = random.Random(number)
        self._inputs = [seed[:limit] for seed in seeds] or [b""]
        self._limit = limit

    def keep(self, data: bytes) -> None:
        """Add an input that was read far as a start for others."""
        if len(self._inputs) < 2000:
            self._inputs.append(data)

    def make(self) -> bytes:
        """Return the next input."""
        data = bytearray(self._random.choice(self._inputs))
        for _ in range(1 << self._random.randrange(5)):
            self._change(data)
        return bytes(data[: self._limit])

    def _change(self, data: bytearray) -> None:
        at = self._random.randrange(len(data) + 1)
        match self._random.randrange(8):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + self._length()]
            case 2:
                data[at:at] = self._random.randbytes(self._length())
            case 3:
                data[at : at + 1] = self._random.randbytes(1)
            case 4 if at < len(data):
                data[at] ^= 1 << self._random.randrange(8)
            case 5:
                self._put_integer(data, at)
            case 6:
                data[at:at] = self._piece(data)
            case _:
                data[at:at] = self._piece(self._random.choice(self._inputs))

    def _length(self) -> int:
        return 1 << self._random.randrange(8)

    def _piece(self, data: bytes | bytearray) -> bytes:
        start = self._random.randrange(len(data) + 1)
        return bytes(data[start : start + self._length()])

    def _put_integer(self, data: bytearray, at: int) -> None:
        """Overwrite aligned bytes with a value at a limit, or near the old one."""
        size = self._random.choice(_SIZES)
        at -= at % size
        old = int.from_bytes(data[at : at + size], "little")
        near = old + self._random.randrange(-16, 17)
        value = self._random.choice((*_INTERESTING, *_INTERESTING_64, len(data), near))
        data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
