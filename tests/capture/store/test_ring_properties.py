"""The ring of a snapshot: always the last bytes, from a PSB on, and bounded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from rtit._core import BulkUnit
from rtit.capture.events import EVENT_RECORD, EventKind
from rtit.capture.store.packet_store import PSB, RingBuffer, SnapshotStore
from rtit.packets import BadBytes, scan
from rtit.perfdata import AuxChunk, Writer
from rtit.trace.recording.aux_buffers import group_contiguous
from support.properties import examples

SIZES = st.sampled_from((4096, 5000, 8192, 40_000))


class File:
    """Stands in for a perf.data writer; keeps only the AUX pieces."""

    def __init__(self) -> None:
        self.pieces: list[AuxChunk] = []

    def auxtrace(
        self, tid: int, pid: int, data: bytes, offset: int, tsc: int, cpu: int = -1
    ) -> None:
        view = memoryview(data + bytes(-len(data) % 8))
        self.pieces.append(AuxChunk(0, offset, tsc, 0, tid, cpu, view))


def trace(seed: int, count: int) -> bytes:
    """A unit's bytes, with a PSB every 2 KB; `seed` chooses where targets are."""
    unit = BulkUnit(ctl=0x2 | 0x8 | 0x400 | 0x2000)
    unit.feed(EVENT_RECORD.pack(EventKind.RESUME, 0, 0, 1, 0, 0x8282_0282_0000, 0, 0))
    for number in range(count):
        # Some targets end as a PSB begins.
        target = 0x8282_0282_0000 | ((number * seed) % 7 and 0x8202) | (number % 3 == 0)
        unit.feed(EVENT_RECORD.pack(EventKind.INDIRECT_JUMP, 0, 2, 1, 0, target, 3 * number, 0))
    return unit.take_output()


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Whole packets, at least so many bytes a chunk."""
    chunks = [b""]
    for packet in scan(data):
        assert not isinstance(packet, BadBytes)
        if len(chunks[-1]) >= sizes[len(chunks) % len(sizes)]:
            chunks.append(b"")
        chunks[-1] += data[packet.offset : packet.offset + packet.size]
    return chunks


CHUNKS = st.lists(st.integers(300, 20_000), min_size=1, max_size=5)


@examples(30)
@given(st.integers(1, 1000), st.integers(1, 6_000), CHUNKS, SIZES)
def test_ring_buffer_holds_the_last_bytes_from_a_psb_on(
    seed: int, count: int, sizes: list[int], size: int
) -> None:
    data = trace(seed, count)
    ring = RingBuffer(1, 1, -1, size)
    done = 0
    for chunk in cut(data, sizes):
        ring.add_packets(chunk)
        done += len(chunk)
        assert ring.buffered_bytes < size + max(4096 + len(chunk), *map(len, ring.chunks))
        offset, held = ring.packets_from_first_psb()
        assert data[offset:done] == held
        assert len(held) <= size
        if offset:
            # Complete from a PSB on, and as much as there is: one comes every 2 KB.
            assert held.startswith(PSB)
            assert len(held) > size - 2048 - 256
        else:
            assert len(held) == done
    assert not any(isinstance(each, BadBytes) for each in scan(held))


@examples(30)
@given(st.integers(1, 1000), st.integers(100, 6_000), CHUNKS, SIZES, st.data())
def test_overlapping_snapshots_join_without_duplicates(
    seed: int, count: int, sizes: list[int], size: int, draw: st.DataObject
) -> None:
    """Snapshots taken at any time: shared bytes occur once, and gaps separate streams."""
    data = trace(seed, count)
    file = File()
    snapshot = SnapshotStore(cast(Writer, file), size)
    done, dumped = 0, [0]
    for chunk in cut(data, sizes):
        snapshot.add_packets(1, 1, chunk, 1)
        done += len(chunk)
        if draw.draw(st.booleans()):
            snapshot.write_snapshot(done)
            dumped.append(done)
    snapshot.end_thread(1)
    snapshot.write_snapshot(done)
    assert file.pieces[-1].reference == done
    groups = group_contiguous(file.pieces)
    assert sum(len(group) for group in groups) == len(file.pieces)
    for before, after in pairwise(groups):
        assert before[-1].aux_offset + before[-1].size < after[0].aux_offset
    for group in groups:
        for one, other in pairwise(group):
            assert one.aux_offset <= other.aux_offset <= one.aux_offset + one.size


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=300))
def test_memory_of_ended_threads_is_bounded(steps: list[tuple[int, bool]]) -> None:
    file = File()
    snapshot: Any = SnapshotStore(cast(Writer, file), 4096)
    most, live, written = 0, set(), set()
    for tid, ends in steps:
        if ends:
            snapshot.end_thread(tid)
            live.discard(tid)
        else:
            snapshot.add_packets(tid, tid, PSB * 20, 1)
            live.add(tid)
            written.add(tid)
            most = max(most, len(live))
        assert sum(ring.buffered_bytes for ring in snapshot._ended) <= 4096 * most
    snapshot.write_snapshot(1)
    there = {piece.tid for piece in file.pieces}
    assert live <= there <= written
    gone = int(snapshot.facts().get("dropped", "0").split()[0])
    assert bool(gone) or there == written
