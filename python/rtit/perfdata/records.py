"""The records of a perf.data file: one declaration each, from which reader and writer derive.

A record is a header (u32 type, u16 misc, u16 size of the whole record), a fixed part, a tail whose
length the size gives, and, for the kernel's records (types below 64) of events with sample_id_all,
a sample_id. The layouts are those of include/uapi/linux/perf_event.h and, from 64 up, of perf's own
tools.

pid, tid and cpu are signed: -1 stands for none, or the kernel. Times are nanoseconds of the perf
clock.
"""

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


@dataclass(slots=True)
class Record:
    """What all records have: the offset in the file, type, misc, size in bytes, and the sample_id
    if any.
    """

    offset: int
    type: int
    misc: int
    size: int
    sample_id: SampleId | None

    layout: ClassVar[Layout]

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

_R = TypeVar("_R", bound=Record)


def _row(
    number: int, name: str, fixed: str, tail: Tail = Tail.NONE
) -> Callable[[type[_R]], type[_R]]:
    """Declare a class's layout. Its fields are the values of `fixed` in order, then the tail if
    there is one.
    """

    def declare(cls: type[_R]) -> type[_R]:
        cls.layout = Layout(number, name, struct.Struct("<" + fixed), tail)
        TABLE[number] = cls
        return cls

    return declare


@_row(1, "MMAP", "ii QQQ", Tail.STRING)
@dataclass(slots=True)
class Mmap(Record):
    """An executable mapping, in the old form. `size_bytes` and `pgoff` are bytes."""

    pid: int
    tid: int
    address: int
    length: int
    pgoff: int
    path: str


@_row(2, "LOST", "QQ")
@dataclass(slots=True)
class Lost(Record):
    """`lost` records of event `id` did not fit the buffer."""

    id: int
    lost: int


@_row(3, "COMM", "ii", Tail.STRING)
@dataclass(slots=True)
class Comm(Record):
    """A thread's name; `by_exec` when an exec gave it."""

    pid: int
    tid: int
    comm: str

    @property
    def by_exec(self) -> bool:
        """Whether the name came with a new program."""
        return bool(self.misc & Misc.COMM_EXEC)


@_row(4, "EXIT", "iiii Q")
@dataclass(slots=True)
class Exit(Record):
    """A thread ended."""

    pid: int
    ppid: int
    tid: int
    ptid: int
    clock: int


@_row(7, "FORK", "iiii Q")
@dataclass(slots=True)
class Fork(Record):
    """A thread began: `tid` of process `pid`, made by thread `ptid` of process `ppid`."""

    pid: int
    ppid: int
    tid: int
    ptid: int
    clock: int


@_row(10, "MMAP2", "ii QQQ 24s II", Tail.STRING)
@dataclass(slots=True)
class Mmap2(Record):
    """An executable mapping. `length` and `pgoff` are bytes.

    `identity` is either device and inode or, with misc bit MMAP_BUILD_ID, the build id of the file.
    """

    pid: int
    tid: int
    address: int
    length: int
    pgoff: int
    identity: bytes
    prot: int
    flags: int
    path: str

    _INODE: ClassVar[struct.Struct] = struct.Struct("<IIQQ")

    @property
    def build_id(self) -> bytes | None:
        """The build id, 0..20 bytes; None if the record gives device and inode instead."""
        if not self.misc & Misc.MMAP_BUILD_ID:
            return None
        return self.identity[4 : 4 + min(self.identity[0], 20)]

    @property
    def inode(self) -> tuple[int, int, int, int] | None:
        """(major, minor, inode, inode generation); None if the record gives a build id instead."""
        if self.misc & Misc.MMAP_BUILD_ID:
            return None
        major, minor, inode, generation = self._INODE.unpack(self.identity)
        return major, minor, inode, generation

    @classmethod
    def pack_inode(cls, major: int, minor: int, inode: int, generation: int) -> bytes:
        """`identity` for device and inode."""
        return cls._INODE.pack(major, minor, inode, generation)

    @staticmethod
    def pack_build_id(build_id: bytes) -> bytes:
        """`identity` for a build id of at most 20 bytes (ValueError otherwise)."""
        if len(build_id) > 20:
            raise ValueError(f"a build id of {len(build_id)} bytes; at most 20 fit")
        return struct.pack("<B3x20s", len(build_id), build_id)


@_row(11, "AUX", "QQQ")
@dataclass(slots=True)
class Aux(Record):
    """`length` bytes of AUX data from `aux_offset` on became readable; see AuxFlag."""

    aux_offset: int
    length: int
    flags: int


@_row(12, "ITRACE_START", "ii")
@dataclass(slots=True)
class ItraceStart(Record):
    """Tracing began while this thread ran."""

    pid: int
    tid: int


@_row(13, "LOST_SAMPLES", "Q")
@dataclass(slots=True)
class LostSamples(Record):
    """`lost` samples could not be written."""

    lost: int


@_row(14, "SWITCH", "")
@dataclass(slots=True)
class Switch(Record):
    """The thread of the sample_id was switched in, or out (`is_out`)."""

    @property
    def is_out(self) -> bool:
        """Switched out, not in."""
        return bool(self.misc & Misc.SWITCH_OUT)


@_row(15, "SWITCH_CPU_WIDE", "ii")
@dataclass(slots=True)
class SwitchCpuWide(Record):
    """The CPU of the sample_id switched threads. Out: the other one is the next; in: it is the
    previous one.
    """

    other_pid: int
    other_tid: int

    @property
    def is_out(self) -> bool:
        """The thread of the sample_id was switched out, not in."""
        return bool(self.misc & Misc.SWITCH_OUT)


@_row(17, "KSYMBOL", "QIHH", Tail.STRING)
@dataclass(slots=True)
class Ksymbol(Record):
    """Kernel code appeared (or, flags bit 0, went away). `kind`: 1 BPF, 2 out of line."""

    address: int
    length: int
    kind: int
    flags: int
    symbol: str


@_row(20, "TEXT_POKE", "QHH", Tail.BYTES)
@dataclass(slots=True)
class TextPoke(Record):
    """Code at `address` changed from `old` to `new`; an empty `old` means there was none, an empty
    `new` none now.
    """

    address: int
    old_size: int
    new_size: int
    code: bytes

    @property
    def old(self) -> bytes:
        """The bytes before."""
        return self.code[: self.old_size]

    @property
    def new(self) -> bytes:
        """The bytes after."""
        return self.code[self.old_size : self.old_size + self.new_size]

    def problem(self) -> str | None:
        """Both runs of bytes must lie in the record."""
        if self.old_size + self.new_size > len(self.code):
            return "TEXT_POKE says it has more bytes than its record"
        return None


@_row(21, "AUX_OUTPUT_HW_ID", "Q")
@dataclass(slots=True)
class AuxOutputHwId(Record):
    """Which hardware counter writes its samples (PEBS) into the trace."""

    hw_id: int


@_row(64, "HEADER_ATTR", "", Tail.BYTES)
@dataclass(slots=True)
class HeaderAttr(Record):
    """Pipe mode: an attr (its own size field gives its length) and the ids of its event."""

    body: bytes


@_row(66, "HEADER_TRACING_DATA", "I", Tail.BYTES)
@dataclass(slots=True)
class TracingData(Record):
    """Pipe mode: `length` bytes follow the record, rounded up to 8; not counted in its size."""

    length: int
    rest: bytes


@_row(67, "HEADER_BUILD_ID", "i24s", Tail.STRING)
@dataclass(slots=True)
class BuildId(Record):
    """The build id of a file. Before Linux 5.11 the size is not given and 20 is meant."""

    pid: int
    data: bytes
    path: str

    @property
    def build_id(self) -> bytes:
        """0..20 bytes."""
        return self.data[: min(self.data[20], 20) if self.misc & Misc.BUILD_ID_SIZE else 20]


@_row(68, "FINISHED_ROUND", "")
@dataclass(slots=True)
class FinishedRound(Record):
    """No record after this has a time before the last round's latest."""


@_row(69, "ID_INDEX", "Q", Tail.BYTES)
@dataclass(slots=True)
class IdIndex(Record):
    """Which CPU and thread each event id belongs to."""

    count: int
    data: bytes

    _ENTRY: ClassVar[struct.Struct] = struct.Struct("<QQqq")

    @property
    def entries(self) -> list[tuple[int, int, int, int]]:
        """(id, index, cpu, tid) each."""
        return list(self._ENTRY.iter_unpack(self.data[: self.count * self._ENTRY.size]))

    def problem(self) -> str | None:
        """All entries must lie in the record."""
        if self.count * self._ENTRY.size > len(self.data):
            return "ID_INDEX says it has more entries than its record"
        return None


@_row(70, "AUXTRACE_INFO", "II", Tail.BYTES)
@dataclass(slots=True)
class AuxtraceInfo(Record):
    """How the AUX data was made: for `kind` 1, Intel PT, `auxtrace.IntelPtInfo` reads `data`."""

    kind: int
    reserved: int
    data: bytes


@_row(71, "AUXTRACE", "QQQIiiI")
@dataclass(slots=True)
class Auxtrace(Record):
    """`length` bytes of AUX data follow the record, not counted in its size.

    `aux_offset` is their place in the stream of that buffer, `reference` the TSC when they were
    written.
    """

    length: int
    aux_offset: int
    reference: int
    idx: int
    tid: int
    cpu: int
    reserved: int


@_row(79, "TIME_CONV", "QQQ", Tail.BYTES)
@dataclass(slots=True)
class TimeConv(Record):
    """The conversion between TSC and perf clock; newer perf adds `rest` (cycles, mask, two
    capabilities).
    """

    time_shift: int
    time_mult: int
    time_zero: int
    rest: bytes


@_row(80, "HEADER_FEATURE", "Q", Tail.BYTES)
@dataclass(slots=True)
class HeaderFeature(Record):
    """A header feature in the stream of records, as pipe mode has it; `data` is padded."""

    feature: int
    data: bytes


@dataclass(slots=True)
class Raw(Record):
    """A record whose inside this project has no use for; `body` leaves out header and sample_id."""

    body: bytes


@dataclass(slots=True)
class Sample(Record):
    """A SAMPLE. Fields that its event does not record are None.

    `body` starts behind the period: read values, call chain, raw data and so on, unparsed.
    """

    event: int
    ip: int | None
    address: int | None
    period: int | None
    body: bytes


_OTHER = (
    "5 THROTTLE,6 UNTHROTTLE,8 READ,9 SAMPLE,16 NAMESPACES,18 BPF_EVENT,19 CGROUP,"
    "65 HEADER_EVENT_TYPE,72 AUXTRACE_ERROR,73 THREAD_MAP,74 CPU_MAP,75 STAT_CONFIG,76 STAT,"
    "77 STAT_ROUND,78 EVENT_UPDATE,"
    "81 COMPRESSED,82 FINISHED_INIT,83 COMPRESSED2"
)
NAMES: dict[int, str] = {
    **{number: cls.layout.name for number, cls in TABLE.items()},
    **{int(number): name for number, name in (entry.split() for entry in _OTHER.split(","))},
}
"""Type number -> name, for all types known."""
SAMPLE = 9
COMPRESSED = (81, 83)


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
