"""Files that are mapped to be read, and that others may cut meanwhile."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rtit import _core


class Mapped(mmap.mmap):
    """A mapped file. If it becomes shorter, what is behind its end reads as zeros, and `was_cut`
    says that any of it was read; without the native module that is the end of the process.
    """

    _guard: _core.Guard | None = None

    @classmethod
    def of(cls, file: int, size: int = 0) -> Self:
        """The first `size` bytes of the file with this descriptor, all of them if it is 0."""
        mapped = cls(file, size, access=mmap.ACCESS_READ)
        try:
            from rtit._core import Guard
        except ImportError:
            return mapped
        mapped._guard = Guard(mapped)
        return mapped

    @property
    def was_cut(self) -> bool:
        """Whether bytes were read that are not there any more."""
        return self._guard is not None and self._guard.hit

    def close(self) -> None:
        """As that of any map: BufferError as long as there are views. Another thread must not be
        reading then: for a moment what is cut is not zeros.
        """
        guard = self._guard
        if guard is not None:
            guard.close()  # what others map at the same place at once is none of ours
        try:
            super().close()
        except BufferError:
            if guard is not None:
                guard.go_on()
            raise
