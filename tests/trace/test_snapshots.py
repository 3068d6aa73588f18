"""Snapshots of one stream without offsets are aligned by their shared bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rtit.packets import encode
from rtit.perfdata import AuxChunk
from rtit.trace.recording.aux_buffers import (
    align_snapshots,
    count_overlapping_bytes,
    group_contiguous,
)

PSB = encode("PSB")


def piece(data: bytes, reference: int) -> AuxChunk:
    return AuxChunk(0, 0, reference, 0, 7, -1, memoryview(data))


def psb(number: int) -> bytes:
    return PSB + encode("TSC", tsc=1000 + number)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.data())
def test_snapshots_of_one_stream_align(parts: list[bytes], data: st.DataObject) -> None:
    """Each snapshot is the end of the bytes written so far. Two that share a PSB are joined to the
    original stream; two that do not stay separate.
    """
    stream = b"".join(psb(number) + part for number, part in enumerate(parts))
    ends = sorted(data.draw(st.lists(st.integers(1, len(stream)), min_size=1, max_size=6)))
    size = data.draw(st.integers(1, len(stream)))
    windows = [(max(0, end - size), end) for end in ends]
    pieces = [piece(stream[begin:end], number) for number, (begin, end) in enumerate(windows, 1)]
    groups = group_contiguous(align_snapshots(pieces))
    assert [each.reference for group in groups for each in group] == [*range(1, len(ends) + 1)]
    for group in groups:
        first = windows[group[0].reference - 1]
        for each in group:
            begin = windows[each.reference - 1][0]
            assert each.aux_offset - group[0].aux_offset == begin - first[0]
    for (before, after), (old, new) in zip(pairwise(pieces), pairwise(windows), strict=True):
        # the first PSB of the later snapshot, where the earlier one has it with the same TSC
        at = stream.find(PSB, new[0], new[1])
        shares = at >= 0 and at + len(psb(0)) <= old[1] and at >= old[0]
        assert count_overlapping_bytes(before.data[:], after.data[:]) == (
            max(0, old[1] - new[0]) if shares else 0
        )


def test_repeated_bytes_without_psb_do_not_overlap() -> None:
    """In a loop all bytes are the same, so equal bytes prove no overlap."""
    loop = b"\xfe" * 64
    assert count_overlapping_bytes(memoryview(psb(1) + loop), memoryview(loop)) == 0
    assert count_overlapping_bytes(memoryview(loop), memoryview(loop)) == 0
    assert count_overlapping_bytes(memoryview(psb(1) + loop), memoryview(psb(2) + loop)) == 0


def test_snapshots_are_sorted_by_time() -> None:
    first, second = piece(psb(1) + b"\x02\x23", 5), piece(psb(2), 9)
    assert [each.reference for each in align_snapshots([second, first])] == [5, 9]
