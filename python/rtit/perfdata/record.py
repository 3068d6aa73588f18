"""What a record of a perf.data file is, and how a kind of record is declared."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import ClassVar, TypeVar

HEADER = struct.Struct("<IHH")
LARGEST = 0xFFF8
"""The size of the longest record: the header's 16 bits, rounded down to the alignment of 8."""
FIRST_USER_TYPE = 64
"""Types from here on are written by perf, not by the kernel, and have no sample_id."""


class Misc(IntFlag):
    """Bits of the header's misc field; what bits 13 and 14 mean depends on the record."""

    KERNEL = 1
    USER = 2
    GUEST_KERNEL = 4
    GUEST_USER = 5
    CPUMODE = 7
    COMM_EXEC = 1 << 13
    SWITCH_OUT = 1 << 13
    SWITCH_OUT_PREEMPT = 1 << 14
    MMAP_BUILD_ID = 1 << 14
    BUILD_ID_SIZE = 1 << 15


class AuxFlag(IntFlag):
    """PERF_AUX_FLAG_*: what happened to a stretch of AUX data."""

    TRUNCATED = 1
    OVERWRITE = 2
    PARTIAL = 4
    COLLISION = 8


class Tail(Enum):
    """What follows the fixed part of a record."""

    NONE = 0
    STRING = 1
    BYTES = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """One row of the table: the struct format of the fixed part and the kind of tail."""

    number: int
    name: str
    fixed: struct.Struct
    tail: Tail


@dataclass(slots=True)
class SampleId:
    """What the sample_id of a record says; a field that the event does not record is None."""

    pid: int | None = None
    tid: int | None = None
    time: int | None = None
    id: int | None = None
    stream_id: int | None = None
    cpu: int | None = None


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """What all records have: the offset in the file, type, misc, size in bytes, and the sample_id
    if any.

    They are compared and printed here, not by methods that each class has of its own: there are
    many classes, and every command loads them.
    """

    offset: int
    type: int
    misc: int
    size: int
    sample_id: SampleId | None

    layout: ClassVar[Layout]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)

    __hash__ = None  # type: ignore[assignment] # they change

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__qualname__}({', '.join(values)})"

    @property
    def name(self) -> str:
        """The name that the kernel or perf gives the type, without PERF_RECORD_; `TYPE_n` if
        unknown.
        """
        return NAMES.get(self.type, f"TYPE_{self.type}")

    @property
    def time(self) -> int | None:
        """ns of the perf clock, from the sample_id; None if the record has no time."""
        return self.sample_id.time if self.sample_id else None

    def problem(self) -> str | None:
        """Why the contents contradict the size; None if they do not."""
        return None


TABLE: dict[int, type[Record]] = {}
"""Type number -> class."""

_OTHER = (
    "5 THROTTLE,6 UNTHROTTLE,8 READ,9 SAMPLE,16 NAMESPACES,18 BPF_EVENT,19 CGROUP,"
    "65 HEADER_EVENT_TYPE,72 AUXTRACE_ERROR,73 THREAD_MAP,74 CPU_MAP,75 STAT_CONFIG,76 STAT,"
    "77 STAT_ROUND,78 EVENT_UPDATE,"
    "81 COMPRESSED,82 FINISHED_INIT,83 COMPRESSED2"
)
NAMES: dict[int, str] = {
    int(number): name for number, name in (entry.split() for entry in _OTHER.split(","))
}
"""Type number -> name, for all types known; those that are declared add theirs."""
SAMPLE = 9
COMPRESSED = (81, 83)

_R = TypeVar("_R", bound=Record)


def row(
    number: int, name: str, fixed: str, tail: Tail = Tail.NONE
) -> Callable[[type[_R]], type[_R]]:
    """Declare a class's layout. Its fields are the values of `fixed` in order, then the tail if
    there is one.
    """

    def declare(cls: type[_R]) -> type[_R]:
        cls.layout = Layout(number, name, struct.Struct("<" + fixed), tail)
        TABLE[number] = cls
        NAMES[number] = name
        return cls

    return declare


@dataclass(slots=True, eq=False, repr=False)
class Raw(Record):
    """A record whose inside this project has no use for; `body` leaves out header and sample_id."""

    body: bytes


@dataclass(slots=True, eq=False, repr=False)
class Sample(Record):
    """A SAMPLE. Fields that its event does not record are None.

    `body` starts behind the period: read values, call chain, raw data and so on, unparsed.
    """

    event: int
    ip: int | None
    address: int | None
    period: int | None
    body: bytes


def encode(
    cls: type[Record], *values: object, tail: bytes = b"", misc: int = 0, sample_id: bytes = b""
) -> bytes:
    """A whole record of the kind `cls`, padded to 8 bytes. `tail` has no padding, a string no NUL.

    Raises ValueError when the record would be longer than LARGEST.
    """
    layout = cls.layout
    body = layout.fixed.pack(*values) + tail
    if layout.tail is Tail.STRING:
        body += b"\0"
    body += bytes(-len(body) % 8) + sample_id
    size = HEADER.size + len(body)
    if size > LARGEST:
        raise ValueError(f"a {layout.name} record of {size} bytes; at most {LARGEST} fit")
    return HEADER.pack(layout.number, misc, size) + body
