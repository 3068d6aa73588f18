"""The records of a perf.data file: one declaration each, from which reader and writer derive.

A record is a header (u32 type, u16 misc, u16 size of the whole record), a fixed part, a tail that
fills the rest, and, for the kernel's records of events with sample_id_all, a sample_id. Types below
64 are written by the kernel (include/uapi/linux/perf_event.h), types from 64 up by perf. A class
with `@record_type` declares the format of the fixed part; its fields are the values, in order.

pid, tid and cpu are signed: -1 stands for none, or the kernel. Times are nanoseconds of the perf
clock.

The module also has `Cursor`, which reads fields within bounds; `ExitStatus`, which rtit's recorders
add to EXIT records; and `bpf_code`, which reads the code of BPF programs from their feature.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import Any, ClassVar, TypeVar, dataclass_transform

from rtit.errors import PerfDataError

_U32 = struct.Struct("<I")
_MAX_TEXT = 1 << 20
"""Bytes of a text; the rest is dropped."""


class Cursor:
    """Reads fields one after the other from `data`, which is at offset `base` of file `source`.

    Every read raises PerfDataError, with the offset in the file, if it would pass the end of
    `data`. `name` is that of the structure, for messages.
    """

    def __init__(self, data: memoryview, base: int, source: str, name: str) -> None:
        self._data = data
        self._base = base
        self._source = source
        self._name = name
        self._at = 0

    @property
    def offset(self) -> int:
        """The position, as an offset in the file."""
        return self._base + self._at

    @property
    def remaining(self) -> int:
        """Bytes between the position and the end."""
        return len(self._data) - self._at

    def error(self, message: str, value: object = None) -> PerfDataError:
        """Return an error with the current position."""
        return PerfDataError(
            f"{self._name}: {message}", source=self._source, offset=self.offset, value=value
        )

    def read(self, size: int) -> memoryview:
        """Return the next `size` bytes, not copied."""
        if size > self.remaining:
            raise self.error(f"ends within a field; {self.remaining} bytes are left of", size)
        start = self._at
        self._at += size
        return self._data[start : self._at]

    def unpack_struct(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the values of the next `layout.size` bytes."""
        return layout.unpack(self.read(layout.size))

    def read_u32(self) -> int:
        """Return the next unsigned 32-bit integer."""
        value: int = self.unpack_struct(_U32)[0]
        return value

    def read_string(self) -> str:
        """Return a perf header string: u32 length of the padded text, then text with NUL."""
        return decode_text(self.read(self.read_u32()))


def decode_text(data: bytes | memoryview) -> str:
    """Return the text up to the first NUL, decoded like a file name: never fails, and
    `os.fsencode` restores the bytes.
    """
    return os.fsdecode(bytes(data[:_MAX_TEXT]).split(b"\0", 1)[0])


# The kernel's EXIT record has neither exit status nor instruction count. rtit's recorders write
# them between the record's own fields and its sample_id, which readers look for at the end of the
# record: stock perf skips what is between. Each is optional.

_STATUS_MAGIC = b"rtit-end"
_STATUS = struct.Struct("<8sIIiIQQ")
"""Magic, wait status, flags, si_code, 0, si_addr, IP."""
_COUNT_MAGIC = b"rtit-ran"
_COUNT = struct.Struct("<8sQ")
"""Magic, instructions."""


class _StatusFlag(IntFlag):
    PROCESS = 1
    TOOK_SIGNAL = 2
    FAULT = 4


@dataclass(frozen=True, slots=True)
class Fault:
    """The instruction at `ip` caused a signal and did not retire.

    `code` is the signal's si_code, `address` its si_addr: the address of the failed access
    (SIGSEGV, SIGBUS) or `ip` itself (SIGILL, SIGFPE); 0 if the kernel does not report it
    (SI_KERNEL).
    """

    ip: int
    code: int
    address: int


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a thread ended."""

    status: int
    """A wait status, as from waitpid(2)."""
    of_process: bool = False
    """The whole process ended with this status; else only this thread is known to have."""
    took_signal: bool = False
    """This thread took the signal that ended the process."""
    fault: Fault | None = None
    """The instruction that caused the signal, if one did."""

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended the thread; None if it exited."""
        return self.status & 0x7F or None

    @property
    def signal_name(self) -> str:
        """`SIGSEGV`; "" if it exited."""
        return signal_name(self.signal) if self.signal is not None else ""

    @property
    def exit_code(self) -> int | None:
        """0..255; None if a signal ended the thread."""
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
    """Return `SIGSEGV`, `SIGRTMIN+2`, or `signal 99` for an unknown number."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def pack_exit_status(status: ExitStatus) -> bytes:
    """Return the bytes that an EXIT record has for a status."""
    flags = _StatusFlag(0)
    if status.of_process:
        flags |= _StatusFlag.PROCESS
    if status.took_signal:
        flags |= _StatusFlag.TOOK_SIGNAL
    if status.fault is not None:
        flags |= _StatusFlag.FAULT
    fault = status.fault or Fault(0, 0, 0)
    values = status.status, flags, fault.code, 0, fault.address, fault.ip
    return _STATUS.pack(_STATUS_MAGIC, *values)


def unpack_exit_status(data: bytes) -> ExitStatus | None:
    """Return the status in the rest of an EXIT record; None if rtit did not write one."""
    if len(data) < _STATUS.size or not data.startswith(_STATUS_MAGIC):
        return None
    _, status, flags, code, _, address, ip = _STATUS.unpack_from(data)
    return ExitStatus(
        status & 0xFFFF,
        of_process=bool(flags & _StatusFlag.PROCESS),
        took_signal=bool(flags & _StatusFlag.TOOK_SIGNAL),
        fault=Fault(ip, code, address) if flags & _StatusFlag.FAULT else None,
    )


def pack_instructions(instructions: int) -> bytes:
    """Return the bytes that an EXIT record has for the number of traced instructions."""
    return _COUNT.pack(_COUNT_MAGIC, instructions)


def unpack_instructions(data: bytes) -> int | None:
    """Return the number of traced instructions in an EXIT record; None if it has none."""
    start = _STATUS.size if data.startswith(_STATUS_MAGIC) else 0
    if len(data) < start + _COUNT.size or not data.startswith(_COUNT_MAGIC, start):
        return None
    return int(_COUNT.unpack_from(data, start)[1])


RECORD_HEADER = struct.Struct("<IHH")
MAX_RECORD_SIZE = 0xFFF8
"""The size of the longest record: the header's 16 bits, rounded down to the alignment of 8."""
FIRST_USER_TYPE = 64
"""Types from here on are written by perf, not by the kernel; they have no sample_id."""


class Misc(IntFlag):
    """Bits of the header's misc field; the meaning of bits 13 and 14 depends on the type."""

    KERNEL = 1
    USER = 2
    GUEST_KERNEL = 4
    GUEST_USER = 5
    CPUMODE = 7
    COMM_EXEC = 1 << 13
    SWITCH_OUT = 1 << 13
    MMAP_BUILD_ID = 1 << 14
    BUILD_ID_SIZE = 1 << 15


class AuxFlag(IntFlag):
    """PERF_AUX_FLAG_*: what happened to a range of AUX data."""

    TRUNCATED = 1
    OVERWRITE = 2
    PARTIAL = 4
    COLLISION = 8


class Tail(Enum):
    """The kind of data after the fixed part of a record."""

    NONE = 0
    STRING = 1
    BYTES = 2


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The type of a record, the format of its fixed part, and the kind of its tail."""

    number: int
    name: str
    fixed: struct.Struct
    tail: Tail


@dataclass(slots=True)
class SampleId:
    """The sample_id of a record. A field that the event does not record is None."""

    pid: int | None = None
    tid: int | None = None
    time: int | None = None
    id: int | None = None
    stream_id: int | None = None
    cpu: int | None = None


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """The fields of all records: offset in the file, type, misc, size in bytes, sample_id if any.

    Comparison and repr are defined here once: generating them for each of the many classes would
    slow down the start of every command.
    """

    offset: int
    type: int
    misc: int
    size: int
    sample_id: SampleId | None

    layout: ClassVar[RecordLayout]

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
        return TYPE_NAMES.get(self.type, f"TYPE_{self.type}")

    @property
    def time(self) -> int | None:
        """ns of the perf clock, from the sample_id; None if the record has no time."""
        return self.sample_id.time if self.sample_id else None

    def problem(self) -> str | None:
        """Return why the contents contradict the size; None if they do not."""
        return None


RECORD_CLASSES: dict[int, type[Record]] = {}
"""Type number -> class."""

_UNDECODED = (
    "5 THROTTLE,6 UNTHROTTLE,8 READ,9 SAMPLE,16 NAMESPACES,18 BPF_EVENT,19 CGROUP,"
    "65 HEADER_EVENT_TYPE,68 FINISHED_ROUND,72 AUXTRACE_ERROR,73 THREAD_MAP,74 CPU_MAP,"
    "75 STAT_CONFIG,76 STAT,77 STAT_ROUND,78 EVENT_UPDATE,"
    "81 COMPRESSED_TYPES,82 FINISHED_INIT,83 COMPRESSED2"
)
TYPE_NAMES: dict[int, str] = {
    int(number): name for number, name in (entry.split() for entry in _UNDECODED.split(","))
}
"""Type number -> name. `record_type` adds those of the classes."""
SAMPLE = 9
COMPRESSED_TYPES = (81, 83)

_R = TypeVar("_R", bound=Record)


@dataclass_transform(eq_default=False)
def record_type(
    number: int, name: str, fixed: str, tail: Tail = Tail.NONE
) -> Callable[[type[_R]], type[_R]]:
    """Declare the layout of a record. The fields of the class are the values of `fixed`, then the
    tail.
    """

    def declare(cls: type[_R]) -> type[_R]:
        cls = dataclass(slots=True, eq=False, repr=False)(cls)
        cls.layout = RecordLayout(number, name, struct.Struct("<" + fixed), tail)
        RECORD_CLASSES[number] = cls
        TYPE_NAMES[number] = name
        return cls

    return declare


@dataclass(slots=True, eq=False, repr=False)
class RawRecord(Record):
    """A record of a type without a class; `body` has neither header nor sample_id."""

    body: bytes


@dataclass(slots=True, eq=False, repr=False)
class Sample(Record):
    """A SAMPLE. Fields that its event does not record are None.

    `body` follows the period: read values, call chain, raw data and so on, undecoded.
    """

    event: int
    ip: int | None
    address: int | None
    period: int | None
    body: bytes


def encode(
    cls: type[Record], *values: object, tail: bytes = b"", misc: int = 0, sample_id: bytes = b""
) -> bytes:
    """Return a record of the class `cls`, padded to 8 bytes.

    `tail` is without padding, and a string without NUL. Raises ValueError if the record would be
    longer than MAX_RECORD_SIZE.
    """
    layout = cls.layout
    body = layout.fixed.pack(*values) + tail
    if layout.tail is Tail.STRING:
        body += b"\0"
    body += bytes(-len(body) % 8) + sample_id
    size = RECORD_HEADER.size + len(body)
    if size > MAX_RECORD_SIZE:
        raise ValueError(f"a {layout.name} record of {size} bytes; at most {MAX_RECORD_SIZE} fit")
    return RECORD_HEADER.pack(layout.number, misc, size) + body


@record_type(1, "MMAP", "ii QQQ", Tail.STRING)
class Mmap(Record):
    """An executable mapping, in the old form. `length` and `pgoff` are bytes."""

    pid: int
    tid: int
    address: int
    length: int
    pgoff: int
    path: str


@record_type(2, "LOST", "QQ")
class Lost(Record):
    """`lost` records of event `id` did not fit the buffer."""

    id: int
    lost: int


@record_type(3, "COMM", "ii", Tail.STRING)
class Comm(Record):
    """The name of a thread; `by_exec`: an exec set it."""

    pid: int
    tid: int
    comm: str

    @property
    def by_exec(self) -> bool:
        """Whether the thread started a new program."""
        return bool(self.misc & Misc.COMM_EXEC)


@record_type(4, "EXIT", "iiii Q", Tail.BYTES)
class Exit(Record):
    """A thread ended. `rest` is empty in perf's own files."""

    pid: int
    ppid: int
    tid: int
    ptid: int
    clock: int
    rest: bytes

    @property
    def exit_status(self) -> ExitStatus | None:
        """The exit status of the thread, if rtit recorded it."""
        return unpack_exit_status(self.rest)

    @property
    def instructions(self) -> int | None:
        """Number of traced instructions of the thread, if rtit recorded it."""
        return unpack_instructions(self.rest)


@record_type(7, "FORK", "iiii Q")
class Fork(Record):
    """A thread started: `tid` of process `pid`, created by thread `ptid` of process `ppid`."""

    pid: int
    ppid: int
    tid: int
    ptid: int
    clock: int


@record_type(10, "MMAP2", "ii QQQ 24s II", Tail.STRING)
class Mmap2(Record):
    """An executable mapping. `length` and `pgoff` are bytes.

    `identity` is device and inode or, with misc bit MMAP_BUILD_ID, the build id of the file.
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
        """The build id, 0..20 bytes; None if the record has device and inode."""
        if not self.misc & Misc.MMAP_BUILD_ID:
            return None
        return self.identity[4 : 4 + min(self.identity[0], 20)]

    @property
    def inode(self) -> tuple[int, int, int, int] | None:
        """(major, minor, inode, inode generation); None if the record has a build id."""
        if self.misc & Misc.MMAP_BUILD_ID:
            return None
        major, minor, inode, generation = self._INODE.unpack(self.identity)
        return major, minor, inode, generation

    @classmethod
    def pack_inode(cls, major: int, minor: int, inode: int, generation: int) -> bytes:
        """Return `identity` for device and inode."""
        return cls._INODE.pack(major, minor, inode, generation)

    @staticmethod
    def pack_build_id(build_id: bytes) -> bytes:
        """Return `identity` for a build id; ValueError if that has more than 20 bytes."""
        if len(build_id) > 20:
            raise ValueError(f"a build id of {len(build_id)} bytes; at most 20 fit")
        return struct.pack("<B3x20s", len(build_id), build_id)


@record_type(11, "AUX", "QQQ")
class Aux(Record):
    """`length` bytes of AUX data from `aux_offset` on became readable. `flags`: see AuxFlag."""

    aux_offset: int
    length: int
    flags: int


@record_type(12, "ITRACE_START", "ii")
class ItraceStart(Record):
    """Tracing began while this thread ran."""

    pid: int
    tid: int


@record_type(13, "LOST_SAMPLES", "Q")
class LostSamples(Record):
    """`lost` samples could not be written."""

    lost: int


@record_type(14, "SWITCH", "")
class Switch(Record):
    """The thread of the sample_id was switched in, or out (`is_out`)."""

    @property
    def is_out(self) -> bool:
        """Whether the thread was switched out, not in."""
        return bool(self.misc & Misc.SWITCH_OUT)


@record_type(15, "SWITCH_CPU_WIDE", "ii")
class SwitchCpuWide(Record):
    """The thread of the sample_id was switched in or out on its CPU.

    The other thread is the next one (`is_out`) or the previous one.
    """

    other_pid: int
    other_tid: int

    @property
    def is_out(self) -> bool:
        """Whether the thread of the sample_id was switched out, not in."""
        return bool(self.misc & Misc.SWITCH_OUT)


@record_type(17, "KSYMBOL", "QIHH", Tail.STRING)
class Ksymbol(Record):
    """Kernel code was added or, with bit 0 of `flags`, removed. `kind`: 1 BPF, 2 out of line."""

    address: int
    length: int
    kind: int
    flags: int
    symbol: str


@record_type(20, "TEXT_POKE", "QHH", Tail.BYTES)
class TextPoke(Record):
    """Code at `address` changed from `old` to `new`. Empty `old`: there was no code; empty `new`:
    there is none any more.
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
        """Return a message if the old or new bytes exceed the record."""
        if self.old_size + self.new_size > len(self.code):
            return "TEXT_POKE says it has more bytes than its record"
        return None


@record_type(21, "AUX_OUTPUT_HW_ID", "Q")
class AuxOutputHwId(Record):
    """Which hardware counter writes its samples (PEBS) into the trace."""

    hw_id: int


@record_type(64, "HEADER_ATTR", "", Tail.BYTES)
class HeaderAttr(Record):
    """Pipe mode: an attr (its own size field gives its length) and the ids of its event."""

    body: bytes


@record_type(66, "HEADER_TRACING_DATA", "I", Tail.BYTES)
class TracingData(Record):
    """Pipe mode: `length` bytes follow the record, rounded up to 8; not counted in its size."""

    length: int
    rest: bytes


@record_type(67, "HEADER_BUILD_ID", "i24s", Tail.STRING)
class BuildId(Record):
    """The build id of a file. Records before Linux 5.11 have no size; it is then 20."""

    pid: int
    data: bytes
    path: str

    @property
    def build_id(self) -> bytes:
        """0..20 bytes."""
        return self.data[: min(self.data[20], 20) if self.misc & Misc.BUILD_ID_SIZE else 20]


@record_type(69, "ID_INDEX", "Q", Tail.BYTES)
class IdIndex(Record):
    """The CPU and the thread of each event id and, if `perf inject` added records of virtual
    machines, the machine.
    """

    count: int
    data: bytes

    _ENTRY: ClassVar[struct.Struct] = struct.Struct("<QQqq")
    _MACHINE: ClassVar[struct.Struct] = struct.Struct("<QQ")

    @property
    def entries(self) -> list[tuple[int, int, int, int]]:
        """(id, index, cpu, tid) of each event."""
        return list(self._ENTRY.iter_unpack(self.data[: self.count * self._ENTRY.size]))

    @property
    def machines(self) -> list[tuple[int, int, int]]:
        """(id, pid, vcpu) of each event of a virtual machine; `pid` is the machine's process.

        The record has one pair for each entry, after all entries; 0 is the host.
        """
        start, size = self.count * self._ENTRY.size, self.count * self._MACHINE.size
        if len(self.data) < start + size:
            return []
        found = self._MACHINE.iter_unpack(self.data[start : start + size])
        return [
            (entry[0], pid, vcpu)
            for entry, (pid, vcpu) in zip(self.entries, found, strict=True)
            if pid
        ]

    def problem(self) -> str | None:
        """Return a message if the entries exceed the record."""
        if self.count * self._ENTRY.size > len(self.data):
            return "ID_INDEX says it has more entries than its record"
        return None


@record_type(70, "AUXTRACE_INFO", "II", Tail.BYTES)
class AuxtraceInfo(Record):
    """How the AUX data was made. For `kind` 1 (Intel PT), `aux.IntelPtInfo` decodes `data`."""

    kind: int
    reserved: int
    data: bytes


@record_type(71, "AUXTRACE", "QQQIiiI")
class Auxtrace(Record):
    """`length` bytes of AUX data follow the record, not counted in its size.

    They are at `aux_offset` of their buffer's stream; `reference` is the TSC when they were
    written.
    """

    length: int
    aux_offset: int
    reference: int
    idx: int
    tid: int
    cpu: int
    reserved: int


@record_type(79, "TIME_CONV", "QQQ", Tail.BYTES)
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


@record_type(80, "HEADER_FEATURE", "Q", Tail.BYTES)
class HeaderFeature(Record):
    """A header feature as a record, as in pipe mode. `data` is padded."""

    feature: int
    data: bytes


_BPIL_HEADER = struct.Struct("<IIQ")
_BPF_CODE = struct.Struct("<16xI4xQ")
_BPF_FUNCTIONS = struct.Struct("<104xIIQQ")
_REQUIRED_ARRAYS = 1 << 0 | 1 << 3 | 1 << 4
"""Code, addresses and lengths of functions."""
_MAX_BPF_PROGRAMS = 1 << 16


def bpf_code(at: Cursor) -> Iterator[tuple[int, bytes]]:
    """Yield (kernel address, code) of each function of each program in HEADER_BPF_PROG_INFO.

    Each program is a `struct perf_bpil` of perf: sizes, a `struct bpf_prog_info`
    (include/uapi/linux/bpf.h), and its arrays; the pointers in it are offsets of the arrays. Raises
    PerfDataError if the data ends within a program.
    """
    count = at.read_u32()
    if count > _MAX_BPF_PROGRAMS:
        raise at.error(f"more than {_MAX_BPF_PROGRAMS} BPF programs", count)
    for _ in range(count):
        info_size, size, arrays = at.unpack_struct(_BPIL_HEADER)
        info, data = bytes(at.read(info_size)), bytes(at.read(size))
        if len(info) < _BPF_FUNCTIONS.size or arrays & _REQUIRED_ARRAYS != _REQUIRED_ARRAYS:
            continue
        length, code = _BPF_CODE.unpack_from(info)
        functions, lengths, addresses, sizes = _BPF_FUNCTIONS.unpack_from(info)
        number = min(functions, lengths, len(data) // 4)
        if code + length > len(data) or addresses + 8 * number > len(data):
            continue
        if sizes + 4 * number > len(data):
            continue
        start = code
        view = memoryview(data)
        for (address,), (size,) in zip(
            struct.iter_unpack("<Q", view[addresses : addresses + 8 * number]),
            struct.iter_unpack("<I", view[sizes : sizes + 4 * number]),
            strict=True,
        ):
            if start + size > code + length:
                break
            yield address, data[start : start + size]
            start += size
