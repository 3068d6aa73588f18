"""Where recorded packets go: to the file, up to a maximum size, or into a ring buffer per thread.

A snapshot recording (perf record --snapshot) keeps the last bytes of each thread, or of each CPU
of a whole system, in a ring buffer, and writes the ring buffers when a snapshot is requested.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rtit.capture.request import SizeLimits, format_size
from rtit.capture.session import STOPPED_BY_FULL_DISK
from rtit.perfdata import Writer

PSB = b"\x02\x82" * 8
_PSB_PAIR = PSB[:2]
_MIN_CHUNK = 4096
_RECORD_OVERHEAD = 64  # an AUXTRACE record and its padding
_MIN_FREE_BYTES = 1 << 30
_MIN_FREE_FRACTION = 20
"""A recording leaves `_MIN_FREE_BYTES` free, or a 20th of the disk if that is less."""
_FREE_SPACE_CHECK_BYTES = 1 << 18
"""Bytes that are written between two checks of the free space."""


class FileStore:
    """Writes packets at once, until the file has its maximum size or the disk is nearly full.

    The file ends before a PSB, so that its last packets are complete.
    """

    def __init__(self, writer: Writer, max_size: int | None = None) -> None:
        self._writer = writer
        self._max_size = max_size
        self._size_at_check = 0
        self._no_space = False
        self.is_full = False

    @property
    def free_bytes(self) -> int | None:
        """Bytes up to the maximum size; None: no limit."""
        if self.is_full:
            return 0
        if self._max_size is None:
            return None
        return max(0, self._max_size - self._writer.size - _RECORD_OVERHEAD)

    def add_packets(
        self, tid: int, pid: int, data: bytes | bytearray | memoryview, tsc: int, cpu: int = -1
    ) -> None:
        """Write the packets, unless the file has reached its size or the disk is nearly full."""
        if self.is_full:
            return
        if self._writer.size - self._size_at_check >= _FREE_SPACE_CHECK_BYTES:
            self._size_at_check = self._writer.size
            self.is_full = self._no_space = self._is_nearly_full()
            if self.is_full:
                return
        if self._max_size is not None:
            free_bytes = self._max_size - self._writer.size - _RECORD_OVERHEAD
            if len(data) > free_bytes:
                self.is_full = True
                data = data[: find_last_psb(bytes(data), max(0, free_bytes))]
        self._writer.auxtrace(tid, pid, data, None, tsc, cpu)

    def _is_nearly_full(self) -> bool:
        disk = self._writer.disk_space()
        if disk is None:
            return False
        free, size = disk
        return free < min(_MIN_FREE_BYTES, size // _MIN_FREE_FRACTION)

    def end_thread(self, tid: int) -> None:
        """Do nothing: no packet is held back."""

    def write_snapshot(self, tsc: int) -> int:
        """Return 0: no packet is held back."""
        return 0

    def facts(self) -> dict[str, str]:
        """Return why the recording stopped, if it stopped early."""
        if self._no_space:
            return {"stopped": STOPPED_BY_FULL_DISK}
        if not self.is_full or self._max_size is None:
            return {}
        return {"stopped": f"at a size of {format_size(self._max_size)}"}


@dataclass(slots=True)
class RingBuffer:
    """Keeps at least the last `size` bytes of a stream, in whole chunks."""

    tid: int
    pid: int
    cpu: int
    size: int
    chunks: deque[bytes] = field(default_factory=deque)
    buffered_bytes: int = 0
    total_bytes: int = 0
    """Length of the stream so far."""
    total_bytes_at_snapshot: int = -1
    """`total_bytes` at the last snapshot."""

    def add_packets(self, data: bytes) -> None:
        """Append a chunk of whole packets; drop chunks older than `size` bytes."""
        if self.chunks and len(self.chunks[-1]) < _MIN_CHUNK:
            self.chunks[-1] += data
        else:
            self.chunks.append(data)
        self.buffered_bytes += len(data)
        self.total_bytes += len(data)
        while self.buffered_bytes - len(self.chunks[0]) >= self.size:
            self.buffered_bytes -= len(self.chunks.popleft())

    def drop_oldest_bytes(self) -> None:
        """Keep exactly the last `size` bytes, which may begin within a packet."""
        data = b"".join(self.chunks)[-self.size :]
        self.chunks, self.buffered_bytes = deque([data]), len(data)

    def packets_from_first_psb(self) -> tuple[int, bytes]:
        """Return the last `size` bytes from their first PSB on, after their stream offset."""
        data = b"".join(self.chunks)[-self.size :]
        at = 0 if len(data) == self.total_bytes else find_psb(data)
        data = data[at:] if at >= 0 else b""
        return self.total_bytes - len(data), data


class SnapshotStore:
    """Keeps the last `size` bytes of each thread or, with `tid` -1, of each CPU, and writes them on
    request.
    """

    is_full = False
    free_bytes: int | None = None

    def __init__(self, writer: Writer, size: int) -> None:
        self._writer = writer
        self._size = size
        self._rings: dict[tuple[int, int], RingBuffer] = {}
        """By CPU (-1 for threads) and tid."""
        self._ended: deque[RingBuffer] = deque()
        self._ended_bytes = 0
        self._max_threads = 0
        self._dropped_threads = 0
        self._snapshots = 0
        self._has_cpus = False

    def add_packets(
        self, tid: int, pid: int, data: bytes | bytearray | memoryview, tsc: int, cpu: int = -1
    ) -> None:
        """Add packets to the thread's ring buffer, which drops the oldest ones."""
        if not data:
            return
        ring = self._rings.get((cpu, tid))
        if ring is None:
            ring = self._rings[cpu, tid] = RingBuffer(tid, pid, cpu, self._size)
            self._has_cpus = cpu >= 0
            self._max_threads = max(self._max_threads, len(self._rings))
        ring.add_packets(bytes(data))

    def end_thread(self, tid: int) -> None:
        """End a thread. Its ring buffer joins those of other ended threads, which share their
        memory.
        """
        ring = self._rings.pop((-1, tid), None)
        if ring is None or ring.total_bytes_at_snapshot == ring.total_bytes:
            return
        ring.drop_oldest_bytes()
        self._ended.append(ring)
        self._ended_bytes += ring.buffered_bytes
        while self._ended_bytes > self._size * self._max_threads:
            self._ended_bytes -= self._ended.popleft().buffered_bytes
            self._dropped_threads += 1

    def write_snapshot(self, tsc: int) -> int:
        """Write every ring buffer that has new packets; all of it, as perf does."""
        total = sum(self._write_ring(ring, tsc) for ring in self._ended)
        self._ended.clear()
        self._ended_bytes = 0
        total += sum(self._write_ring(ring, tsc) for ring in self._rings.values())
        self._snapshots += 1
        return total

    def facts(self) -> dict[str, str]:
        """Return the number and size of the snapshots, and how many threads were dropped."""
        owner = "CPU" if self._has_cpus else "thread"
        facts = {
            "snapshot": f"{self._snapshots} of the last {format_size(self._size)} of each {owner}"
        }
        if self._dropped_threads:
            facts["dropped"] = f"{self._dropped_threads} threads that had ended"
        return facts

    def _write_ring(self, ring: RingBuffer, tsc: int) -> int:
        if ring.total_bytes_at_snapshot == ring.total_bytes:
            return 0
        ring.total_bytes_at_snapshot = ring.total_bytes
        offset, data = ring.packets_from_first_psb()
        if data:
            self._writer.auxtrace(ring.tid, ring.pid, data, offset, tsc, ring.cpu)
        return len(data)


def make_packet_store(writer: Writer, limits: SizeLimits) -> FileStore | SnapshotStore:
    """Return the packet store for these limits."""
    if limits.snapshot is not None:
        return SnapshotStore(writer, limits.snapshot)
    return FileStore(writer, limits.max_size)


def find_psb(data: bytes) -> int:
    """Return the offset of the first PSB, or -1.

    The packet before a PSB may end with bytes of the PSB pattern: the PSB is then the end of the
    longer run.
    """
    at = data.find(PSB)
    if at >= 0:
        while data.startswith(_PSB_PAIR, at + len(PSB)):
            at += len(_PSB_PAIR)
    return at


def find_last_psb(data: bytes | bytearray, end: int) -> int:
    """Return the offset of the last PSB that ends by `end`, or 0. Packets before it are whole."""
    return max(0, data.rfind(PSB, 0, end))
