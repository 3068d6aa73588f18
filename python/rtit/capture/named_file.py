"""A file whose errors include its name."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from io import FileIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


class NamedFile(FileIO):
    """A file to write to, unbuffered, of a descriptor that it closes. What is written is written
    whole, or there is an OSError with the name that the file was given, whatever it is called.
    """

    def __init__(self, number: int, name: str) -> None:
        super().__init__(number, "wb")
        self._given = name

    def write(self, data: Buffer, /) -> int:
        """All of it."""
        done = 0
        with self._named(), memoryview(data).cast("B") as whole:
            while done < len(whole):
                with whole[done:] as rest:
                    size = super().write(rest)
                if size is None:
                    raise BlockingIOError(errno.EAGAIN, "it takes no more, and does not wait")
                done += size
        return done

    def close(self) -> None:
        """What was written before may be refused only now."""
        with self._named():
            super().close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self._given
            raise
