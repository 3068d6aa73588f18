"""Capture events: what a traced program did, from a tracer to a recorder.

A batch is a pair (records, blobs). `records` holds records of 40 bytes; a record of a kind in
`KINDS_WITH_BLOB` has in `extra` the index of its blob in the same batch.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rtit.capture.output_files import create_private_file
from rtit.errors import InputError

EVENT_RECORD = struct.Struct("<BBHIQQQQ")
"""kind, flags, instruction length, tid, ip, target, clock, extra."""

_MMAP_HEADER = struct.Struct("<QIIIIQQ")


class EventKind(IntEnum):
    """The kind of a record, and the fields that it uses besides `tid` and `clock`.

    `clock` is the number of instructions that all threads have retired, including this one. A REP
    instruction counts once; an instruction that faults and INT n, INT3, INT1 do not count. For
    branches, SYSCALL, RESUME, SWITCH and EXIT `extra` is this count for the thread alone.
    """

    CONDITIONAL = 1
    """At ip, with its target if taken. The fall-through is ip + length."""
    JUMP = 2
    CALL = 3
    """Direct; a target of ip + length is the call that only reads the IP."""
    INDIRECT_JUMP = 4
    INDIRECT_CALL = 5
    RETURN = 6
    FAR = 7
    """A far transfer that stays in user mode."""
    SYSCALL = 8
    """At ip: user code is left."""
    INTERRUPT = 9
    """ip is the next instruction, not yet executed; extra: the signal number."""
    FAULT = 10
    """The instruction at ip did not retire; extra: the signal number, from bit 32 on its si_code;
    target: its si_addr."""
    SOFT_INT = 11
    """INT3, INT1, INT n at ip; extra: the vector."""
    RESUME = 12
    """User code continues at target; flags: a `ResumeReason`."""
    SWITCH = 13
    """The thread is switched out and in at ip."""
    THREAD = 14
    """A new thread. ip: its process; target, extra: the parent's tid and process."""
    EXIT = 15
    """A thread ended. ip: the wait status."""
    EXEC = 16
    """Process ip runs a new program, the blob's; its mappings are gone."""
    COMM = 17
    """The thread's name is in the blob; ip: its process."""
    MMAP = 18
    """`target` bytes of executable mapping at ip; the blob: see `parse_mmap`."""
    CODE = 19
    """The blob's bytes are at ip."""
    WARNING = 20
    """A text, in the blob."""
    END = 21
    """Nothing follows. ip: the first program's wait status; target: how many edges of the recording
    window were passed (without a start edge: one more)."""


class ResumeReason(IntEnum):
    """Why user code continues: the flags of `EventKind.RESUME`."""

    SYSTEM_CALL = 0
    HANDLER = 1
    EXEC = 2
    THREAD = 3
    OTHER = 4


class EventFlag:
    """Bits of a record's flags. Each name begins with the kind of the record."""

    CONDITIONAL_TAKEN = 1
    FAR_TO_32_BIT = 1
    """`target` is 32-bit code."""
    RESUME_32_BIT = 0x80
    """`target` is 32-bit code. The other bits are a `ResumeReason`."""
    SWITCH_IN_USER = 1
    """User code was interrupted at `ip`, which has not been executed."""
    SWITCH_TURNS_ON = 2
    """Tracing is on from here on."""
    SWITCH_TURNS_OFF = 4
    """Tracing is off from here on."""
    THREAD_SHARES_MEMORY = 1
    """The thread runs in the address space of its parent."""
    THREAD_UNTRACED = 2
    """Tracing is off until a SWITCH turns it on."""
    EXIT_DETACHED = 1
    """The thread lives on untraced."""
    EXIT_TOOK_SIGNAL = 2
    """This thread took the signal that ended the process."""
    EXIT_WHOLE_PROCESS = 4
    """The whole process ended so (QEMU)."""
    COMM_BY_EXEC = 1
    """The name comes from exec."""
    MMAP_WITH_CONTENTS = 1
    """The blob continues with the first bytes of the file, and CODE with CODE_OF_MAPPING has the
    mapped bytes: the reader may find another file by this path, or a changed one."""
    CODE_OF_MAPPING = 1
    """The bytes are those of the last mapping there, which is MMAP_WITH_CONTENTS."""
    WARNING_LEAVES = 2
    """Process `ip` is about to run a program unrecorded (QEMU)."""
    WARNING_STAYS = 4
    """Process `ip` stays recorded, because its exec has failed (QEMU)."""
    WARNING_UNCOUNTED = 8
    """The counts of a process are missing (QEMU)."""
    END_KILLED = 1
    """The tracer killed the program."""
    PACKETS_CONTINUE = 1
    """The blob continues in the next message of this thread (QEMU)."""


KINDS_WITH_BLOB = frozenset(
    {EventKind.EXEC, EventKind.COMM, EventKind.MMAP, EventKind.CODE, EventKind.WARNING}
)

EventBatch = tuple[bytes, Sequence[bytes]]


class CaptureEvent(NamedTuple):
    """One record, with its blob (empty if it has none) instead of the blob's index."""

    kind: EventKind
    flags: int
    length: int
    tid: int
    ip: int
    target: int
    clock: int
    extra: int
    blob: bytes


class MmapEvent(NamedTuple):
    """The blob of `EventKind.MMAP`; fields in the order of PERF_RECORD_MMAP2 after the size."""

    pgoff: int
    """File offset of the mapping's first byte, in bytes."""
    prot: int
    flags: int
    major: int
    minor: int
    inode: int
    inode_generation: int
    path: str
    """The file, `//anon`, or a name in brackets as `[vdso]`; undecodable bytes as surrogates."""


BRANCH_KINDS = bytes(
    (
        EventKind.CONDITIONAL,
        EventKind.INDIRECT_JUMP,
        EventKind.INDIRECT_CALL,
        EventKind.RETURN,
        EventKind.FAR,
        EventKind.SYSCALL,
    )
)
"""Kinds that count as branches."""


def count_branches(records: bytes) -> int:
    """Count the conditional and indirect branches, returns, and far transfers in `records`."""
    kinds = records[:: EVENT_RECORD.size]
    return sum(map(kinds.count, BRANCH_KINDS))


def parse_mmap(blob: bytes) -> MmapEvent:
    """Return the mapping in a blob of `EventKind.MMAP`. Raises InputError for a truncated blob."""
    return parse_mmap_with_contents(blob)[0]


def parse_mmap_with_contents(blob: bytes) -> tuple[MmapEvent, bytes]:
    """Return the mapping, and the beginning of the file if the event has `MMAP_WITH_CONTENTS`.

    Raises InputError for a truncated blob.
    """
    end = blob.find(b"\0", _MMAP_HEADER.size)
    if end < 0:
        raise InputError("the data of a mapping is truncated", value=f"{len(blob)} bytes")
    path = os.fsdecode(blob[_MMAP_HEADER.size : end])
    pgoff, prot, flags, major, minor, inode, generation = _MMAP_HEADER.unpack_from(blob)
    mapping = MmapEvent(pgoff, prot, flags, major, minor, inode, generation, path)
    return mapping, blob[end + 1 :]


def iterate_events(batch: EventBatch) -> Iterator[CaptureEvent]:
    """Yield the events of one batch in order."""
    records, blobs = batch
    whole = len(records) - len(records) % EVENT_RECORD.size
    for offset in range(0, whole, EVENT_RECORD.size):
        kind, flags, length, tid, ip, target, clock, extra = EVENT_RECORD.unpack_from(
            records, offset
        )
        try:
            known = EventKind(kind)
        except ValueError:
            raise InputError("unknown kind of event", offset=offset, value=kind) from None
        blob = b""
        if known in KINDS_WITH_BLOB:
            if extra >= len(blobs):
                raise InputError(
                    "the data of the event is not in the batch of the event",
                    offset=offset,
                    value=extra,
                )
            blob = blobs[extra]
        yield CaptureEvent(known, flags, length, tid, ip, target, clock, extra, blob)
    if whole != len(records):
        raise InputError(
            "an event is truncated", offset=whole, value=f"{len(records) - whole} bytes"
        )


class EventLog:
    """The event batches of a recording, to replay them through a trace unit with other settings.

    Iteration yields the batches. The file format is a header (`rtit-events`, a zero byte, u32
    version 1), then for each batch: u32 size of the records, u32 number of blobs, u32 size of each
    blob, the records, the blobs. Integers are little-endian.
    """

    _MAGIC = b"rtit-events\0" + struct.pack("<I", 1)

    def __init__(self) -> None:
        self._batches: list[tuple[bytes, tuple[bytes, ...]]] = []

    def append(self, records: bytes, blobs: Sequence[bytes]) -> None:
        """Add a batch."""
        self._batches.append((records, tuple(blobs)))

    def __iter__(self) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
        return iter(self._batches)

    def __len__(self) -> int:
        """The number of batches."""
        return len(self._batches)

    def events(self) -> Iterator[CaptureEvent]:
        """Yield the events of all batches in order. Raises InputError for damaged batches."""
        for batch in self._batches:
            yield from iterate_events(batch)

    def save(self, path: Path | str) -> None:
        """Write the log to a file. Raises OSError."""
        with BufferedWriter(create_private_file(path)) as file:
            self.write(file)

    def write(self, file: BinaryIO) -> None:
        """Write the log to an open file. Raises OSError."""
        file.write(self._MAGIC)
        for records, blobs in self._batches:
            sizes = (len(records), len(blobs), *map(len, blobs))
            file.write(struct.pack(f"<{len(sizes)}I", *sizes))
            file.write(records)
            file.writelines(blobs)

    @classmethod
    def load(cls, path: Path | str) -> EventLog:
        """Read a file that `save` wrote.

        Raises OSError, and InputError with source and offset for another or a truncated file.
        """
        log = cls()
        data = Path(path).read_bytes()
        reader = _LogReader(data, str(path))
        if data[: len(cls._MAGIC)] != cls._MAGIC:
            raise InputError(
                "not a log of capture events", source=str(path), offset=0, value=data[:16].hex()
            )
        reader.read_exactly(len(cls._MAGIC))
        while reader.offset < len(data):
            size, count = struct.unpack("<II", reader.read_exactly(8))
            if size % EVENT_RECORD.size:
                raise InputError(
                    "the size of the records is not a multiple of 40",
                    source=str(path),
                    offset=reader.offset - 8,
                    value=size,
                )
            # `take` raises if the file is shorter, so a wrong size never allocates memory.
            sizes = struct.unpack(f"<{count}I", reader.read_exactly(4 * count))
            records = reader.read_exactly(size)
            log.append(records, [reader.read_exactly(each) for each in sizes])
        return log


class _LogReader:
    def __init__(self, data: bytes, source: str) -> None:
        self.data = data
        self.source = source
        self.offset = 0

    def read_exactly(self, size: int) -> bytes:
        left = len(self.data) - self.offset
        if size > left:
            raise InputError(
                f"truncated: {size} bytes should follow, but only {left} bytes do",
                source=self.source,
                offset=self.offset,
            )
        self.offset += size
        return self.data[self.offset - size : self.offset]
