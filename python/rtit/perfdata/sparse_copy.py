"""A local copy of a remote recording that has only the parts that were needed.

The copy is an unnamed temporary file of the size of the remote one, mapped into memory. It is empty
at first. The records are loaded when the recording is opened, AUX data when it is decoded. What a
command does not decode is not copied, and nothing is requested twice. Once the copy has 1 GiB, AUX
data is requested whenever it is decoded, and not kept.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref

from rtit.errors import PerfDataError
from rtit.remote_files import RemoteFile

_BLOCK = 1 << 16
_MAX_BLOCKS = 1 << 6
"""In one request, which is 4 MB."""
_MAX_KEPT_BLOCKS = 1 << 14
"""AUX data is kept up to this size of the copy, which is 1 GiB."""


class SparseCopy:
    """The parts of a remote file that were loaded, in a mapped file; the others are zeros."""

    def __init__(self, remote: RemoteFile) -> None:
        self.remote = remote
        self._loaded: set[int] = set()
        self._next, self._ahead = -1, 1
        """The block after the last request, and the blocks to request if reading goes on there."""
        self._lock = threading.Lock()
        try:
            with tempfile.TemporaryFile() as file:
                file.truncate(remote.size)
                self.map = mmap.mmap(file.fileno(), remote.size, access=mmap.ACCESS_READ)
                self._file = os.dup(file.fileno())
        except (OSError, OverflowError) as error:
            message = f"no temporary file in {tempfile.gettempdir()} can have its size: {error}"
            raise PerfDataError(message, source=remote.name, value=remote.size) from None
        weakref.finalize(self, os.close, self._file)
        self._view = memoryview(self.map)

    def load(self, start: int, end: int) -> None:
        """Load the bytes from `start` to `end`, and perhaps more. Raises PerfDataError."""
        last = -(-min(end, self.remote.size) // _BLOCK)
        with self._lock:
            for block in range(max(start, 0) // _BLOCK, last):
                if block not in self._loaded:
                    self._request(block, last)

    def read(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end`, which are kept unless the copy is large enough.

        Raises PerfDataError.
        """
        blocks = range(start // _BLOCK, -(-end // _BLOCK))
        if len(self._loaded) >= _MAX_KEPT_BLOCKS and not self._loaded.issuperset(blocks):
            return memoryview(self.remote.read_range(start, end))
        self.load(start, end)
        return self._view[start:end]

    def _request(self, first: int, last: int) -> None:
        """Load blocks from `first` on: those before `last`, and more if reads are sequential."""
        self._ahead = min(2 * self._ahead, _MAX_BLOCKS) if first == self._next else 1
        end = first + 1
        limit = min(max(last, first + self._ahead), first + _MAX_BLOCKS)
        while end < limit and end not in self._loaded and end * _BLOCK < self.remote.size:
            end += 1
        start = first * _BLOCK
        data = self.remote.read_range(start, min(end * _BLOCK, self.remote.size))
        try:
            while data:
                written = os.pwrite(self._file, data, start)
                data, start = data[written:], start + written
        except OSError as error:
            message = f"cannot be copied to {tempfile.gettempdir()} (set by TMPDIR)"
            raise PerfDataError(f"{message}: {error.strerror}", source=self.remote.name) from error
        self._loaded.update(range(first, end))
        self._next = end


class LoadedOnUse:
    """A range of a remote file, as bytes of which slices can be taken."""

    def __init__(self, copy: SparseCopy, start: int, end: int) -> None:
        self._copy = copy
        self._range = range(start, end)

    def __len__(self) -> int:
        return len(self._range)

    def __bytes__(self) -> bytes:
        return bytes(self[:])

    def __getitem__(self, part: slice) -> memoryview:
        wanted = self._range[part]
        return self._copy.read(wanted.start, wanted.stop)
