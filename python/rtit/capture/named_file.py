"""An unbuffered output file with its name in every OSError."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from io import FileIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


class NamedFile(FileIO):
    """Writes to a descriptor, which it owns. A write is complete or raises OSError.

    Errors have `name` as their file name, because a FileIO of a descriptor knows no name.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "wb")
        self._given_name = name

    def write(self, data: Buffer, /) -> int:
        """Write all of `data` and return its size."""
        done = 0
        with self._with_name(), memoryview(data).cast("B") as whole:
            while done < len(whole):
                with whole[done:] as rest:
                    size = super().write(rest)
                if size is None:
                    raise BlockingIOError(errno.EAGAIN, "writing would block")
                done += size
        return done

    def close(self) -> None:
        """Close the file. A network file system may report the error of an earlier write here."""
        with self._with_name():
            super().close()

    @contextmanager
    def _with_name(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self._given_name
            raise
