"""Reading fields from a part of a file without ever leaving it.

How a thread ended and how many of its instructions were traced, in its PERF_RECORD_EXIT.

The kernel's record has neither. Ours carries them between the record's own fields and its
sample_id, which readers look for at the record's end: stock perf passes over what is between.
Little-endian, each if it is known: `rtit-end`, wait status u32, flags u32, si_code i32, zero u32,
si_addr u64, IP u64; `rtit-ran`, instructions u64.

What a record of a perf.data file is, and how a kind of record is declared.

The records that the kernel writes: types below 64 (include/uapi/linux/perf_event.h).

The records that perf itself writes: types from 64 up.

HEADER_BPF_PROG_INFO: the BPF programs that were loaded, with the code that they became.

Each is what perf's `struct perf_bpil` holds: sizes, a `struct bpf_prog_info` (include/uapi/linux/
bpf.h), and its arrays, to which its pointers are offsets.

The records of a perf.data file: one declaration each, from which reader and writer derive.

A record is a header (u32 type, u16 misc, u16 size of the whole record), a fixed part, a tail whose
length the size gives, and, for the kernel's records (types below 64) of events with sample_id_all,
a sample_id. The layouts are those of include/uapi/linux/perf_event.h and, from 64 up, of perf's own
tools.

pid, tid and cpu are signed: -1 stands for none, or the kernel. Times are nanoseconds of the perf
clock.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import Any, ClassVar, TypeVar

from rtit.errors import PerfDataError

_U32 = struct.Struct("<I")
_LONGEST = 1 << 20
"""Bytes of a text; what is behind them is left out."""


class Cursor:
    """A position in `data`, which begins at offset `base` of the file `source`.

    Every read raises PerfDataError, with the offset in the file, when it would pass the end.
    """

    def __init__(self, data: memoryview, base: int, source: str, what: str) -> None:
        self._data = data
        self._base = base
        self._source = source
        self._what = what
        self._at = 0

    @property
    def offset(self) -> int:
        """The position, as an offset in the file."""
        return self._base + self._at

    @property
    def left(self) -> int:
        """Bytes between the position and the end."""
        return len(self._data) - self._at

    def fail(self, message: str, value: object = None) -> PerfDataError:
        """The error to raise for something wrong at the position."""
        return PerfDataError(
            f"{self._what}: {message}", source=self._source, offset=self.offset, value=value
        )

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, not copied."""
        if size > self.left:
            raise self.fail(f"ends within a field; {self.left} bytes are left of", size)
        start = self._at
        self._at += size
        return self._data[start : self._at]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The values of `layout`, which come next."""
        return layout.unpack(self.take(layout.size))

    def u32(self) -> int:
        """An unsigned 32-bit integer."""
        value: int = self.unpack(_U32)[0]
        return value

    def string(self) -> str:
        """A perf header string: u32 length of the padded text, then the text with its NUL."""
        return text(self.take(self.u32()))


def text(data: bytes | memoryview) -> str:
    """Text up to the first NUL, as the file system's names are decoded: never fails, and
    `os.fsencode` undoes it.
    """
    return os.fsdecode(bytes(data[:_LONGEST]).split(b"\0", 1)[0])


_MAGIC = b"rtit-end"
_LAYOUT = struct.Struct("<8sIIiIQQ")
_COUNT_MAGIC = b"rtit-ran"
_COUNT = struct.Struct("<8sQ")


class _Flag(IntFlag):
    PROCESS = 1
    TOOK_SIGNAL = 2
    FAULT = 4


@dataclass(frozen=True, slots=True)
class Fault:
    """The instruction at `ip` did not retire; `code` is its signal's si_code, `address` its
    si_addr: the address that could not be reached (SIGSEGV, SIGBUS) or `ip` itself (SIGILL,
    SIGFPE). A kernel that does not tell the address (SI_KERNEL) has 0 there.
    """

    ip: int
    code: int
    address: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How a thread ended.

    `status` is a wait status as waitpid(2) gives it. `of_process`: the whole process ended so;
    otherwise this thread alone is known to have. `took_signal`: the signal that ended the process
    was this thread's; `fault`: the instruction that caused it, if one did.
    """

    status: int
    of_process: bool = False
    took_signal: bool = False
    fault: Fault | None = None

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended it; None if it exited."""
        return self.status & 0x7F or None

    @property
    def signal_name(self) -> str:
        """`SIGSEGV`; "" if it exited."""
        return signal_name(self.signal) if self.signal is not None else ""

    @property
    def exit_code(self) -> int | None:
        """0..255; None if a signal ended it."""
        return None if self.signal else self.status >> 8 & 0xFF

    def __str__(self) -> str:
        """`exit code 3`, or `SIGSEGV at address 0x10, instruction 0x401000`."""
        if self.signal is None:
            return f"exit code {self.exit_code}"
        if self.fault is None:
            return self.signal_name
        return (
            f"{self.signal_name} at address {self.fault.address:#x}, instruction {self.fault.ip:#x}"
        )


def signal_name(number: int) -> str:
    """`SIGSEGV`, `SIGRTMIN+2`, or `signal 99` for what is none."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def pack_ending(ending: Ending) -> bytes:
    """What an EXIT record carries of it."""
    flags = _Flag(0)
    if ending.of_process:
        flags |= _Flag.PROCESS
    if ending.took_signal:
        flags |= _Flag.TOOK_SIGNAL
    if ending.fault is not None:
        flags |= _Flag.FAULT
    fault = ending.fault or Fault(0, 0, 0)
    return _LAYOUT.pack(_MAGIC, ending.status, flags, fault.code, 0, fault.address, fault.ip)


def unpack_ending(data: bytes) -> Ending | None:
    """The inverse of `pack_ending`; None for anything else, such as the nothing that perf has."""
    if len(data) < _LAYOUT.size or not data.startswith(_MAGIC):
        return None
    _, status, flags, code, _, address, ip = _LAYOUT.unpack_from(data)
    return Ending(
        status & 0xFFFF,
        of_process=bool(flags & _Flag.PROCESS),
        took_signal=bool(flags & _Flag.TOOK_SIGNAL),
        fault=Fault(ip, code, address) if flags & _Flag.FAULT else None,
    )


def pack_instructions(instructions: int) -> bytes:
    """What an EXIT record carries of the number of traced instructions, after the ending."""
    return _COUNT.pack(_COUNT_MAGIC, instructions)


def unpack_instructions(data: bytes) -> int | None:
    """The number of traced instructions that an EXIT record carries; None if it has none."""
    start = _LAYOUT.size if data.startswith(_MAGIC) else 0
    if len(data) < start + _COUNT.size or not data.startswith(_COUNT_MAGIC, start):
        return None
    return int(_COUNT.unpack_from(data, start)[1])


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


@row(1, "MMAP", "ii QQQ", Tail.STRING)
@dataclass(slots=True, eq=False, repr=False)
class Mmap(Record):
    """An executable mapping, in the old form. `size_bytes` and `pgoff` are bytes."""

    pid: int
    tid: int
    address: int
    length: int
    pgoff: int
    path: str


@row(2, "LOST", "QQ")
@dataclass(slots=True, eq=False, repr=False)
class Lost(Record):
    """`lost` records of event `id` did not fit the buffer."""

    id: int
    lost: int


@row(3, "COMM", "ii", Tail.STRING)
@dataclass(slots=True, eq=False, repr=False)
class Comm(Record):
    """A thread's name; `by_exec` when an exec gave it."""

    pid: int
    tid: int
    comm: str

    @property
    def by_exec(self) -> bool:
        """Whether the name came with a new program."""
        return bool(self.misc & Misc.COMM_EXEC)


@row(4, "EXIT", "iiii Q", Tail.BYTES)
@dataclass(slots=True, eq=False, repr=False)
class Exit(Record):
    """A thread ended. `rest` is empty in perf's own files."""

    pid: int
    ppid: int
    tid: int
    ptid: int
    clock: int
    rest: bytes

    @property
    def ending(self) -> Ending | None:
        """How it ended, where rtit wrote that."""
        return unpack_ending(self.rest)

    @property
    def instructions(self) -> int | None:
        """How many of its instructions were traced, where rtit wrote that."""
        return unpack_instructions(self.rest)


@row(7, "FORK", "iiii Q")
@dataclass(slots=True, eq=False, repr=False)
class Fork(Record):
    """A thread began: `tid` of process `pid`, made by thread `ptid` of process `ppid`."""

    pid: int
    ppid: int
    tid: int
    ptid: int
    clock: int


@row(10, "MMAP2", "ii QQQ 24s II", Tail.STRING)
@dataclass(slots=True, eq=False, repr=False)
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


@row(11, "AUX", "QQQ")
@dataclass(slots=True, eq=False, repr=False)
class Aux(Record):
    """`length` bytes of AUX data from `aux_offset` on became readable; see AuxFlag."""

    aux_offset: int
    length: int
    flags: int


@row(12, "ITRACE_START", "ii")
@dataclass(slots=True, eq=False, repr=False)
class ItraceStart(Record):
    """Tracing began while this thread ran."""

    pid: int
    tid: int


@row(13, "LOST_SAMPLES", "Q")
@dataclass(slots=True, eq=False, repr=False)
class LostSamples(Record):
    """`lost` samples could not be written."""

    lost: int


@row(14, "SWITCH", "")
@dataclass(slots=True, eq=False, repr=False)
class Switch(Record):
    """The thread of the sample_id was switched in, or out (`is_out`)."""

    @property
    def is_out(self) -> bool:
        """Switched out, not in."""
        return bool(self.misc & Misc.SWITCH_OUT)


@row(15, "SWITCH_CPU_WIDE", "ii")
@dataclass(slots=True, eq=False, repr=False)
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


@row(17, "KSYMBOL", "QIHH", Tail.STRING)
@dataclass(slots=True, eq=False, repr=False)
class Ksymbol(Record):
    """Kernel code appeared (or, flags bit 0, went away). `kind`: 1 BPF, 2 out of line."""

    address: int
    length: int
    kind: int
    flags: int
    symbol: str


@row(20, "TEXT_POKE", "QHH", Tail.BYTES)
@dataclass(slots=True, eq=False, repr=False)
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


@row(21, "AUX_OUTPUT_HW_ID", "Q")
@dataclass(slots=True, eq=False, repr=False)
class AuxOutputHwId(Record):
    """Which hardware counter writes its samples (PEBS) into the trace."""

    hw_id: int


@row(64, "HEADER_ATTR", "", Tail.BYTES)
@dataclass(slots=True, eq=False, repr=False)
class HeaderAttr(Record):
    """Pipe mode: an attr (its own size field gives its length) and the ids of its event."""

    body: bytes


@row(66, "HEADER_TRACING_DATA", "I", Tail.BYTES)
@dataclass(slots=True, eq=False, repr=False)
class TracingData(Record):
    """Pipe mode: `length` bytes follow the record, rounded up to 8; not counted in its size."""

    length: int
    rest: bytes


@row(67, "HEADER_BUILD_ID", "i24s", Tail.STRING)
@dataclass(slots=True, eq=False, repr=False)
class BuildId(Record):
    """The build id of a file. Before Linux 5.11 the size is not given and 20 is meant."""

    pid: int
    data: bytes
    path: str

    @property
    def build_id(self) -> bytes:
        """0..20 bytes."""
        return self.data[: min(self.data[20], 20) if self.misc & Misc.BUILD_ID_SIZE else 20]


@row(68, "FINISHED_ROUND", "")
@dataclass(slots=True, eq=False, repr=False)
class FinishedRound(Record):
    """No record after this has a time before the last round's latest."""


@row(69, "ID_INDEX", "Q", Tail.BYTES)
@dataclass(slots=True, eq=False, repr=False)
class IdIndex(Record):
    """Which CPU and thread each event id belongs to, and, if `perf inject` brought records of
    virtual machines in, which machine.
    """

    count: int
    data: bytes

    _ENTRY: ClassVar[struct.Struct] = struct.Struct("<QQqq")
    _MACHINE: ClassVar[struct.Struct] = struct.Struct("<QQ")

    @property
    def entries(self) -> list[tuple[int, int, int, int]]:
        """(id, index, cpu, tid) each."""
        return list(self._ENTRY.iter_unpack(self.data[: self.count * self._ENTRY.size]))

    @property
    def machines(self) -> list[tuple[int, int, int]]:
        """(id, machine, vcpu) of each event of a virtual machine: the process that it is. They lie
        behind all entries, for each of which there is one.
        """
        start, size = self.count * self._ENTRY.size, self.count * self._MACHINE.size
        if len(self.data) < start + size:
            return []
        found = self._MACHINE.iter_unpack(self.data[start : start + size])
        return [(one[0], *of) for one, of in zip(self.entries, found, strict=True) if of[0]]

    def problem(self) -> str | None:
        """All entries must lie in the record."""
        if self.count * self._ENTRY.size > len(self.data):
            return "ID_INDEX says it has more entries than its record"
        return None


@row(70, "AUXTRACE_INFO", "II", Tail.BYTES)
@dataclass(slots=True, eq=False, repr=False)
class AuxtraceInfo(Record):
    """How the AUX data was made: for `kind` 1, Intel PT, `auxtrace.IntelPtInfo` reads `data`."""

    kind: int
    reserved: int
    data: bytes


@row(71, "AUXTRACE", "QQQIiiI")
@dataclass(slots=True, eq=False, repr=False)
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


@row(79, "TIME_CONV", "QQQ", Tail.BYTES)
@dataclass(slots=True, eq=False, repr=False)
class TimeConv(Record):
    """The conversion between TSC and perf clock; newer perf adds `rest`: time_cycles, time_mask,
    and the two bytes cap_user_time_zero and cap_user_time_short.
    """

    time_shift: int
    time_mult: int
    time_zero: int
    rest: bytes

    _REST: ClassVar[struct.Struct] = struct.Struct("<QQBB")

    @property
    def short(self) -> tuple[int, int] | None:
        """time_cycles and time_mask of a clock with fewer than 64 bits; None for others."""
        if len(self.rest) < self._REST.size:
            return None
        cycles, mask, _, is_short = self._REST.unpack_from(self.rest)
        return (cycles, mask) if is_short else None


@row(80, "HEADER_FEATURE", "Q", Tail.BYTES)
@dataclass(slots=True, eq=False, repr=False)
class HeaderFeature(Record):
    """A header feature in the stream of records, as pipe mode has it; `data` is padded."""

    feature: int
    data: bytes


_BPF_U32 = struct.Struct("<I")
_HEAD = struct.Struct("<IIQ")
_CODE = struct.Struct("<16xI4xQ")
_FUNCTIONS = struct.Struct("<104xIIQQ")
_NEEDED = 1 << 0 | 1 << 3 | 1 << 4
"""The arrays with code, addresses and lengths of functions."""
_MOST = 1 << 16


def bpf_code(at: Cursor) -> Iterator[tuple[int, bytes]]:
    """(kernel address, code) of each function of each program. Raises PerfDataError where it ends
    within one.
    """
    count = at.unpack(_BPF_U32)[0]
    if count > _MOST:
        raise at.fail(f"more than {_MOST} BPF programs", count)
    for _ in range(count):
        info_size, size, arrays = at.unpack(_HEAD)
        info, data = bytes(at.take(info_size)), bytes(at.take(size))
        if len(info) < _FUNCTIONS.size or arrays & _NEEDED != _NEEDED:
            continue
        length, code = _CODE.unpack_from(info)
        functions, lengths, addresses, sizes = _FUNCTIONS.unpack_from(info)
        number = min(functions, lengths, len(data) // 4)
        if code + length > len(data) or addresses + 8 * number > len(data):
            continue
        if sizes + 4 * number > len(data):
            continue
        place = code
        view = memoryview(data)
        for (address,), (part,) in zip(
            struct.iter_unpack("<Q", view[addresses : addresses + 8 * number]),
            struct.iter_unpack("<I", view[sizes : sizes + 4 * number]),
            strict=True,
        ):
            if place + part > code + length:
                break
            yield address, data[place : place + part]
            place += part
