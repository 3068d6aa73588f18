"""The parts of a recording: its file, the files of a directory beside it, and what was compressed.

`perf record -z` writes its records as pieces of a Zstandard stream, one stream a file; they follow
each other there as in a file of their own. `perf record --threads` writes a directory: `data` with
the header, `data.0` and so on with records alone.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rtit.errors import PerfDataError

from . import records
from .decode import Decoder
from .header import Header, Section
from .records import HEADER
from .sample import SampleLayouts
from .scan import Behind, Place, Scan, check_size

MAIN = "data"
"""The file with the header in a directory."""
_OTHER = re.compile(r"data\.[0-9]{1,6}")
_COMPRESSED, _COMPRESSED2 = records.COMPRESSED
_U64 = struct.Struct("<Q")
_ALWAYS = 1 << 26
_RATIO = 256


class Part(NamedTuple):
    """Records, mapped: `view` is all of them, `map` what they are in."""

    map: mmap.mmap
    view: memoryview
    scan: Scan

    def records(self, layouts: SampleLayouts, source: str) -> Iterator[records.Record]:
        """All but those that hold compressed ones."""
        decoder = Decoder(self.view, layouts, source)
        for place in self.scan.walk():
            if place.number not in records.COMPRESSED:
                yield decoder.record(place)


def others(folder: str) -> list[str]:
    """The files of records in a directory, in the order of their numbers; regular ones alone."""
    with os.scandir(folder) as entries:
        found = [
            each.path
            for each in entries
            if _OTHER.fullmatch(each.name) and each.is_file(follow_symlinks=False)
        ]
    return sorted(found, key=lambda path: int(path.rpartition(".")[2]))


def bare(path: str, source: str) -> Part | None:
    """A file of records without a header; None if it is empty. Raises PerfDataError."""
    try:
        with Path(path).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise PerfDataError(f"cannot be read: {error.strerror}", source=path) from error
    return _part(mapped, source)


def inflated(view: memoryview, scan: Scan, source: str) -> Part | None:
    """The records that were compressed in others; None if there are none.

    They go to a file without a name, which is gone when it is closed. Raises PerfDataError for what
    is no Zstandard, or grows beyond all measure.
    """
    places = [place for number in records.COMPRESSED for place in scan.noted[number]]
    if not places:
        return None
    import tempfile

    from rtit._core import unzstd

    limit = _ALWAYS + _RATIO * sum(place.size for place in places)
    first = min(place.offset for place in places)
    pieces = (_payload(view, place, source) for place in sorted(places))
    with tempfile.TemporaryFile() as copy:
        try:
            size = unzstd(pieces, copy.write, limit)
        except ValueError as error:
            message = f"compressed records: {error}"
            raise PerfDataError(message, source=source, offset=first) from None
        except OSError as error:
            where = tempfile.gettempdir()
            message = f"cannot be copied to {where} (TMPDIR says where): {error.strerror}"
            raise PerfDataError(message, source=source) from error
        if not size:
            return None
        copy.flush()
        mapped = mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_READ)
    return _part(mapped, source)


def _part(mapped: mmap.mmap, source: str) -> Part:
    view = memoryview(mapped)
    whole = Header(None, 0, Section(0, len(view)), ())
    size = len(view)

    def behind() -> Behind:
        return Behind(lambda _start, _end: None, lambda: check_size(mapped, size, source))

    return Part(mapped, view, Scan(view, whole, source, behind))


def _payload(view: memoryview, place: Place, source: str) -> memoryview:
    """The compressed bytes of a record; those of the second kind say how many they are."""
    start, end = place.offset + HEADER.size, place.offset + place.size
    if place.number == _COMPRESSED2:
        if end - start < _U64.size:
            raise PerfDataError(
                "a COMPRESSED2 record is too short",
                source=source,
                offset=place.offset,
                value=place.size,
            )
        (size,) = _U64.unpack_from(view, start)
        start += _U64.size
        if size > end - start:
            raise PerfDataError(
                "COMPRESSED2 says it has more bytes than its record",
                source=source,
                offset=place.offset,
                value=size,
            )
        end = start + size
    return view[start:end]
