"""A selection of rows equals the rows picked by hand from the whole table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from rtit.errors import UsageError
from rtit.packets import encode
from rtit.trace import BranchKind, Selection, Stream, Table, TimeRange
from support.streams import SYNC

CALL = encode("TIP", ip_bytes=6, payload=0x2000)
BACK = encode("TIP", ip_bytes=6, payload=0x1000)


def stream() -> Stream:
    """1000 call rax; 2000 jz 2004; 2002 nop; 2003 nop; 2004 jmp rax; a TSC 10 later each time."""
    image = rtit.Image().add(0x1000, b"\xff\xd0").add(0x2000, bytes.fromhex("7402 90 90 ffe0"))
    loop = b""
    for number in range(30):
        loop += CALL + encode("TNT", bits="TN"[number % 2]) + encode("PTW", ip=0, payload_bytes=0,
            payload=number) + BACK + encode("TSC", tsc=(1 << 20) + 10 * number)  # fmt: skip
    return rtit.decode(SYNC + loop, image).streams[0]


WHOLE = stream()
TABLES: dict[str, Callable[..., Table[Any]]] = {
    "blocks": WHOLE.blocks,
    "instructions": WHOLE.instructions,
    "branches": WHOLE.branches,
    "sync_points": WHOLE.sync_points,
    "raw_events": WHOLE.raw_events,
}
times = st.tuples(st.integers(-20, 320), st.integers(-20, 320)).map(
    lambda pair: TimeRange((1 << 20) + min(pair), (1 << 20) + max(pair))
)
address = st.sampled_from([0, 0x1000, 0x1001, 0x1002, 0x2000, 0x2001, 0x2003, 0x2004, 0x2005])
ranges = st.lists(
    st.tuples(address, address).filter(lambda pair: pair[0] < pair[1]), max_size=2
).map(tuple)


@pytest.mark.parametrize("name", TABLES)
@given(time=st.none() | times, ranges=ranges)
def test_selection_equals_filtering_rows_by_hand(
    name: str, time: TimeRange | None, ranges: tuple[tuple[int, int], ...]
) -> None:
    table = TABLES[name]
    where = Selection(time=time, ranges=ranges)
    whole = table().columns()
    low_name, high_name = table().batch_type.ADDRESS_COLUMNS or ("", "")
    kept = []
    for index, when in enumerate(whole["time"].tolist()):
        if time is not None and not (time.first or 0) <= when <= (time.last or 0):
            continue
        low, high = int(whole[low_name][index]), int(whole[high_name][index])
        if ranges and not any(low < end and high >= start for start, end in ranges):
            continue
        kept.append(index)
    part = table(where).columns()
    for column, values in whole.items():
        assert part[column].tolist() == values[kept].tolist(), column


@given(count=st.integers(0, 300), time=st.none() | times)
def test_head_and_tail_limit_rows(count: int, time: TimeRange | None) -> None:
    whole = WHOLE.instructions(Selection(time=time)).columns()["ip"].tolist()
    first = WHOLE.instructions(Selection(time=time, head=count)).columns()["ip"].tolist()
    last = WHOLE.instructions(Selection(time=time, tail=count)).columns()["ip"].tolist()
    assert first == whole[:count]
    assert last == whole[max(0, len(whole) - count) :]


def test_head_and_tail_span_batches() -> None:
    image = rtit.Image().add(0x1000, bytes.fromhex("ffe0"))
    many = rtit.decode(SYNC + BACK * 200_000, image).streams[0]
    assert sum(1 for _ in many.instructions()) > 2
    for count in (0, 1, 65_535, 70_000, 200_000, 300_000):
        for part in (Selection(head=count), Selection(tail=count)):
            found = many.instructions(part).columns()["ip"]
            assert len(found) == min(count, 200_000)


@given(time=times, ranges=ranges)
def test_totals_equal_counted_rows(time: TimeRange, ranges: tuple[tuple[int, int], ...]) -> None:
    where = Selection(time=time, ranges=ranges)
    edges = WHOLE.edges(where)
    branches = Counter((b.source, b.target, b.kind) for b in WHOLE.branches(where).rows())
    assert {(e.source, e.target, e.kind): e.count for e in edges} == branches
    runs = Counter((b.start, b.instructions) for b in WHOLE.blocks(where).rows())
    assert {(r.start, r.instructions): r.count for r in WHOLE.coverage(where)} == runs
    keys = list(zip(edges.source.tolist(), edges.target.tolist(), edges.kind, strict=True))
    assert keys == sorted(keys)


def test_edges_of_range_use_totals() -> None:
    where = Selection(ranges=((0x2000, 0x2001),))
    assert [(edge.target, edge.kind, edge.count) for edge in WHOLE.edges(where)] == [
        (0x2002, BranchKind.NOT_TAKEN, 15),
        (0x2004, BranchKind.CONDITIONAL, 15),
    ]


def test_selection_without_matching_column_raises_usage_error() -> None:
    with pytest.raises(UsageError, match="rows of Packets have no address"):
        WHOLE.packets(Selection(ranges=((0, 1),)))
    with pytest.raises(UsageError, match="seconds"):
        WHOLE.blocks(Selection(time=TimeRange(1, 2, seconds=True)))


def test_unmatched_stream_has_empty_tables() -> None:
    assert WHOLE.instructions(Selection(tids=(5,))).columns()["ip"].tolist() == []
    assert len(WHOLE.edges(Selection(tids=(5,)))) == 0
    assert list(WHOLE.packets(Selection(cpus=(0,)))) == []


def test_head_limits_packets() -> None:
    first = WHOLE.packets(Selection(head=3))
    assert [(row.offset, row.name) for row in first.rows()] == [
        (0, "PSB"),
        (16, "TSC"),
        (24, "CBR"),
    ]
    assert [row.fields for row in first.rows()] == [{}, {"tsc": 1 << 20}, {"ratio": 10}]


def test_selected_blocks_have_no_events() -> None:
    (part,) = WHOLE.blocks(Selection(ranges=((0x1000, 0x1001),)))
    assert set(part.start.tolist()) == {0x1000}
    assert len(part.events) == 0
    (whole,) = WHOLE.blocks()
    assert len(whole.events) > 30
    columns = WHOLE.raw_events().columns()
    assert np.array_equal(columns["value"], whole.events.value)
