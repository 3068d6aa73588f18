"""The records that the kernel writes: types below 64 (include/uapi/linux/perf_event.h)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from .ending import Ending, unpack_ending, unpack_instructions
from .record import Misc, Record, Tail, row


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
