"""Where recorded packets go: to the file, up to a maximum size, or into a ring buffer per thread.

A snapshot recording (perf record --snapshot) keeps the last bytes of each thread in a ring buffer,
and writes the ring buffers when a snapshot is requested.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from rtit.capture.recording import OUT_OF_SPACE_ERRORS
from rtit.capture.store.sizes import format_size
from rtit.perfdata import Writer

PSB = b"\x02\x82" * 8
_PSB_PAIR = PSB[:2]
_MIN_CHUNK = 4096
_RECORD_OVERHEAD = 64  # an AUXTRACE record and its padding
_MIN_FREE_BYTES = 1 << 30
_MIN_FREE_FRACTION = 20
"""A recording leaves this much of the disk free: so many bytes, or one in so many if that is less.
"""
_FREE_SPACE_CHECK_BYTES = 1 << 18  # bytes of the file between two looks at the disk


class PacketStore(Protocol):
    """Where a recorder puts the packets of its threads."""

    @property
    def full(self) -> bool:
        """Whether no more packets are kept."""

    @property
    def room(self) -> int | None:
        """Bytes that may still be written to the file; None: no limit."""

    def put(self, tid: int, pid: int, data: bytes | bytearray | memoryview, tsc: int) -> None:
        """Take whole packets of a thread, made until `tsc`."""

    def end(self, tid: int) -> None:
        """The thread has ended."""

    def dump(self, tsc: int) -> int:
        """Write what is only in memory to the file; return the number of bytes."""

    def facts(self) -> dict[str, str]:
        """What a reader of the file should know."""


class FileStore:
    """Everything goes to the file at once, up to a size of the file, or until the disk is nearly
    full.

    Of the packets that do not fit those before a PSB are written that do.
    """

    def __init__(self, writer: Writer, max_size: int | None = None) -> None:
        self._writer = writer
        self._max_size = max_size
        self._looked = 0
        self._no_space = False
        self.full = False

    @property
    def room(self) -> int | None:
        """Up to its size."""
        if self.full:
            return 0
        if self._max_size is None:
            return None
        return max(0, self._max_size - self._writer.size - _RECORD_OVERHEAD)

    def put(self, tid: int, pid: int, data: bytes | bytearray | memoryview, tsc: int) -> None:
        """Write the packets, unless the file has reached its size or the disk is nearly full."""
        if self.full:
            return
        if self._writer.size - self._looked >= _FREE_SPACE_CHECK_BYTES:
            self._looked = self._writer.size
            self.full = self._no_space = self._is_nearly_full()
            if self.full:
                return
        if self._max_size is not None:
            room = self._max_size - self._writer.size - _RECORD_OVERHEAD
            if len(data) > room:
                self.full = True
                data = data[: last_psb(bytes(data), max(0, room))]
        self._writer.auxtrace(tid, pid, data, None, tsc)

    def _is_nearly_full(self) -> bool:
        disk = self._writer.disk_space()
        if disk is None:
            return False
        free, size = disk
        return free < min(_MIN_FREE_BYTES, size // _MIN_FREE_FRACTION)

    def end(self, tid: int) -> None:
        """Do nothing: no packet is held back."""

    def dump(self, tsc: int) -> int:
        """Return 0: no packet is held back."""
        return 0

    def facts(self) -> dict[str, str]:
        """Whether the trace ends early."""
        if self._no_space:
            return {"stopped": OUT_OF_SPACE_ERRORS}
        if not self.full or self._max_size is None:
            return {}
        return {"stopped": f"at a size of {format_size(self._max_size)}"}


@dataclass(slots=True)
class RingBuffer:
    """The last `size` bytes of a stream, or some more: whole chunks go."""

    pid: int
    size: int
    chunks: deque[bytes] = field(default_factory=deque)
    held: int = 0
    written: int = 0
    """All bytes ever."""
    dumped: int = -1
    """`written` when the ring was last dumped."""

    def put(self, data: bytes) -> None:
        """Append a chunk of whole packets; drop chunks older than `size` bytes."""
        if self.chunks and len(self.chunks[-1]) < _MIN_CHUNK:
            self.chunks[-1] += data
        else:
            self.chunks.append(data)
        self.held += len(data)
        self.written += len(data)
        while self.held - len(self.chunks[0]) >= self.size:
            self.held -= len(self.chunks.popleft())

    def cut(self) -> None:
        """Keep exactly the last `size` bytes, which may begin within a packet."""
        data = b"".join(self.chunks)[-self.size :]
        self.chunks, self.held = deque([data]), len(data)

    def contents(self) -> tuple[int, bytes]:
        """Return where the last `size` bytes, from their first PSB on, are in the stream, and the
        bytes.
        """
        data = b"".join(self.chunks)[-self.size :]
        at = 0 if len(data) == self.written else find_psb(data)
        data = data[at:] if at >= 0 else b""
        return self.written - len(data), data


class SnapshotStore:
    """Keeps the last `size` bytes of each thread, and writes them on request."""

    full = False
    room: int | None = None

    def __init__(self, writer: Writer, size: int) -> None:
        self._writer = writer
        self._size = size
        self._rings: dict[int, RingBuffer] = {}
        self._ended: deque[tuple[int, RingBuffer]] = deque()
        self._ended_bytes = 0
        self._most = 0
        self._dropped = 0
        self._dumps = 0

    def put(self, tid: int, pid: int, data: bytes | bytearray | memoryview, tsc: int) -> None:
        """Keep the packets, in the place of the thread's oldest."""
        if not data:
            return
        ring = self._rings.get(tid)
        if ring is None:
            ring = self._rings[tid] = RingBuffer(pid, self._size)
            self._most = max(self._most, len(self._rings))
        ring.put(bytes(data))

    def end(self, tid: int) -> None:
        """End a thread. Its ring buffer joins those of other ended threads, which share their
        memory.
        """
        ring = self._rings.pop(tid, None)
        if ring is None or ring.dumped == ring.written:
            return
        ring.cut()
        self._ended.append((tid, ring))
        self._ended_bytes += ring.held
        while self._ended_bytes > self._size * self._most:
            self._ended_bytes -= self._ended.popleft()[1].held
            self._dropped += 1

    def dump(self, tsc: int) -> int:
        """Write every ring that has something new, whole, as perf does."""
        total = sum(self._write(tid, ring, tsc) for tid, ring in self._ended)
        self._ended.clear()
        self._ended_bytes = 0
        total += sum(self._write(tid, ring, tsc) for tid, ring in self._rings.items())
        self._dumps += 1
        return total

    def facts(self) -> dict[str, str]:
        """How much a snapshot holds, and which threads it has lost."""
        facts = {"snapshot": f"{self._dumps} of the last {format_size(self._size)} of each thread"}
        if self._dropped:
            facts["dropped"] = f"{self._dropped} threads that had ended"
        return facts

    def _write(self, tid: int, ring: RingBuffer, tsc: int) -> int:
        if ring.dumped == ring.written:
            return 0
        ring.dumped = ring.written
        offset, data = ring.contents()
        if data:
            self._writer.auxtrace(tid, ring.pid, data, offset, tsc)
        return len(data)


def find_psb(data: bytes) -> int:
    """Where the first PSB begins; -1 without any.

    What precedes a PSB may end as it begins: the PSB is then the end of the longer run.
    """
    at = data.find(PSB)
    if at >= 0:
        while data.startswith(_PSB_PAIR, at + len(PSB)):
            at += len(_PSB_PAIR)
    return at


def last_psb(data: bytes | bytearray, end: int) -> int:
    """Where the last PSB that is over by `end` begins, or 0: packets before it are whole."""
    return max(0, data.rfind(PSB, 0, end))
