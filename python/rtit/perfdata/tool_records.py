"""The records that perf itself writes: types from 64 up."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from .record import Misc, Record, Tail, row


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
