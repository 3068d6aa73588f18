"""The header at the start of a perf.data file.

magic "PERFILE2", u64 size of the header, u64 size of an entry of the attrs section, then (offset,
size) of the attrs, the data and an obsolete section, then 256 feature bits. With a header size of
16 nothing follows the size: pipe mode.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rtit.errors import NotPerfDataError, PerfDataError, UnsupportedError

from .attr import SMALLEST

MAGIC = b"PERFILE2"
VERSION_1 = b"PERFFILE"
MAGICS = (MAGIC, MAGIC[::-1], VERSION_1)
"""How files begin of which this version can say what they are; it reads those of the first."""
FILE = struct.Struct("<8sQQ QQ QQ QQ 4Q")
PIPE = struct.Struct("<8sQ")
SECTION = struct.Struct("<QQ")
DATA_SIZE_OFFSET = 48
"""Where the header says how many bytes of records there are: a recorder keeps it up to date."""
FLAGS_OFFSET = 72
"""Where the feature bits are."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the file, in bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Header:
    """`attrs` is None in pipe mode, where attrs and features are records."""

    attrs: Section | None
    entry_size: int
    data: Section
    features: tuple[int, ...]

    @classmethod
    def decode(cls, file: memoryview, source: str) -> Header:
        """Read and check a header. `file` is the whole file.

        Raises PerfDataError where it is no perf.data file or contradicts the file's size,
        UnsupportedError for one of a big-endian machine or of perf before 2010.
        """
        magic = bytes(file[: len(MAGIC)])
        if magic == MAGIC[::-1]:
            raise UnsupportedError(f"{source}: perf.data of a big-endian machine is not read")
        if magic == VERSION_1:
            raise UnsupportedError(f"{source}: version 1 of perf.data is not read")
        if magic != MAGIC:
            raise NotPerfDataError(source, magic)
        if len(file) < PIPE.size:
            raise PerfDataError(
                "ends within the header", source=source, offset=len(file), value=len(file)
            )
        size: int = PIPE.unpack_from(file)[1]
        if size == PIPE.size:
            return cls(None, 0, Section(size, len(file) - size), ())
        if size < FILE.size:
            raise PerfDataError("bad size of the header", source=source, offset=8, value=size)
        if len(file) < FILE.size:
            raise PerfDataError(
                "ends within the header", source=source, offset=len(file), value=len(file)
            )
        _, _, entry_size, attrs_offset, attrs_size, data_offset, data_size, _, _, *flags = (
            FILE.unpack_from(file)
        )
        attrs = Section(attrs_offset, attrs_size)
        if entry_size < SMALLEST + SECTION.size or entry_size > len(file):
            raise PerfDataError(
                "bad size of an attr's entry", source=source, offset=16, value=entry_size
            )
        if attrs.end > len(file):
            raise PerfDataError(
                "the attrs lie outside of the file", source=source, offset=24, value=attrs_offset
            )
        if attrs_size % entry_size:
            raise PerfDataError(
                "the attrs are no whole number of entries",
                source=source,
                offset=32,
                value=attrs_size,
            )
        if data_offset < FILE.size:
            raise PerfDataError(
                "the records overlap the header", source=source, offset=40, value=data_offset
            )
        bits = sum(word << 64 * i for i, word in enumerate(flags))
        features = tuple(number for number in range(256) if bits >> number & 1)
        return cls(attrs, entry_size, Section(data_offset, data_size), features)
