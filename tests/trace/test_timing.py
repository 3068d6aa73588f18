"""Bounds of time, cycles and frequency with `timing=True`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import rtit
from rtit.packets import encode
from rtit.trace import Instructions, Settings, Stream
from rtit.trace.tables import build_tables
from rtit.trace.tables.packets import PACKET_KINDS
from rtit.trace.time import timing_samples
from support.streams import SYNC

UNKNOWN = (1 << 64) - 1
START = 1 << 20
IMAGE = rtit.Image().add(0x1000, bytes.fromhex("7502 90 90 75fa ffe0"))
"""1000 jnz 1004; 1002 nop; 1003 nop; 1004 jnz 1000; 1006 jmp rax"""

TAKEN = encode("TNT", bits="TT")
PASSED = encode("TNT", bits="NT")
TMA = encode("TMA", ctc=0, fast_counter=0)


def mtc(ctc: int) -> bytes:
    return encode("MTC", ctc=ctc & 0xFF)


def tsc(value: int) -> bytes:
    return encode("TSC", tsc=value)


def cyc(cycles: int) -> bytes:
    return encode("CYC", cycles=cycles)


def stream(packets: bytes, **settings: Any) -> Stream:
    head = SYNC.replace(encode("CBR", ratio=10), TMA + encode("CBR", ratio=10))
    known = {"nom_freq": 20, "cpuid_15": (1, 10), **settings}
    return rtit.decode(head + packets, IMAGE, **known).streams[0]


def list_columns(table: Any, *names: str) -> list[tuple[int, ...]]:
    columns = table.columns()
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


@pytest.mark.spec("MTC-005", "CYC-008")
def test_time_bounds_of_rows_are_known_times_around_them() -> None:
    # an MTC is 10 ticks, a cycle 2
    packets = TAKEN + mtc(1) + TAKEN + cyc(3) + TAKEN + mtc(3) + TAKEN
    rows = stream(packets).blocks(timing=True)
    assert list_columns(rows, "start", "time", "earliest", "latest", "cycles") == [
        (0x1000, START, START, START + 10, 0),
        (0x1004, START, START, START + 10, 0),
        # begins with the branch of the first TNT, and ends in the second
        (0x1000, START, START, START + 30, 0),
        (0x1004, START + 10, START + 10, START + 30, 0),
        (0x1000, START + 10, START + 10, START + 30, 0),
        (0x1004, START + 16, START + 10, START + 30, 3),
        (0x1000, START + 16, START + 10, UNKNOWN, 3),
        (0x1004, START + 30, START + 30, UNKNOWN, 3),
    ]
    assert repr(rows).endswith("offset, earliest, latest, cycles, frequency, ipc>")


def test_estimate_is_not_later_than_next_mtc() -> None:
    packets = TAKEN + cyc(100) + TAKEN + TAKEN + mtc(1)
    assert list_columns(stream(packets).blocks(), "time")[-1] == (START + 10,)
    assert list_columns(stream(packets).blocks(timing=True), "time", "latest")[-1] == (
        START + 10,
        START + 10,
    )


@pytest.mark.spec("TIME-012")
def test_frequency_is_from_cbr_and_then_measured() -> None:
    # by CBR half the TSC's frequency; then measured: 8 cycles in 10 ticks
    packets = TAKEN + cyc(8) + mtc(1) + TAKEN + TAKEN
    assert list_columns(stream(packets).blocks(timing=True), "frequency", "cycles") == [
        *[(0.5, 0)] * 3,
        *[(0.8, 8)] * 3,
    ]
    none = stream(TAKEN, nom_freq=0).blocks(timing=True).columns()
    assert np.isnan(none["frequency"]).all()


def test_unknown_times_have_no_bounds() -> None:
    head = SYNC.replace(encode("TSC", tsc=START), b"")
    (untimed,) = rtit.decode(head + TAKEN + mtc(1) + TAKEN, IMAGE).streams
    assert set(
        list_columns(untimed.instructions(timing=True), "time", "earliest", "latest", "cycles")
    ) == {(0, 0, UNKNOWN, 0)}


def test_events_and_branches_have_bounds() -> None:
    packets = mtc(1) + TAKEN + encode("PTW", ip=0, payload_bytes=0, payload=5) + mtc(2)
    one = stream(packets)
    assert list_columns(one.branches(timing=True), "source", "earliest", "latest") == [
        (0x1000, START, START + 20),
        (0x1004, START + 10, START + 20),
    ]
    events = one.raw_events(timing=True)
    assert list_columns(events, "time", "earliest", "latest")[-1] == (
        START + 10,
        START + 10,
        START + 20,
    )
    # a PSB+ has its own TSC
    assert list_columns(one.sync_points(timing=True), "earliest", "latest") == [(START, START)]


packet = st.one_of(
    st.sampled_from([TAKEN, PASSED, encode("PTW", ip=0, payload_bytes=0, payload=1)]),
    st.integers(0, 300).map(lambda n: ("mtc", n)),
    st.integers(-50, 3000).map(lambda n: ("tsc", n)),
    st.integers(1, 5000).map(cyc),
    st.sampled_from(
        [encode("CBR", ratio=20), encode("OVF") + encode("FUP", ip_bytes=1, payload=0x1000), SYNC]
    ),
)


def encode_items(items: list[Any]) -> bytes:
    """Encode items with mostly increasing times."""
    now, ctc, packets = START, 0, b""
    for item in items:
        if isinstance(item, bytes):
            packets += item
        elif item[0] == "mtc":
            ctc += 1 + item[1] // 200
            packets += mtc(ctc)
        else:
            now += item[1]
            packets += tsc(max(now, 0)) + TMA
            ctc = 0
    return packets


TABLES = ("blocks", "instructions", "branches", "raw_events", "sync_points")


@pytest.mark.parametrize("kind", TABLES)
@given(items=st.lists(packet, max_size=60))
def test_times_lie_within_monotonic_bounds(kind: str, items: list[Any]) -> None:
    one = stream(encode_items(items))
    plain = getattr(one, kind)().columns()
    timed = getattr(one, kind)(timing=True).columns()
    for name, column in plain.items():
        if name != "time":
            assert np.array_equal(column, timed[name]), name
    earliest, time, latest = timed["earliest"], timed["time"], timed["latest"]
    assert (earliest <= time).all()
    assert (time <= latest).all()
    within = np.clip(plain["time"], earliest, latest)
    assert np.array_equal(time, within)
    assert (np.diff(timed["cycles"].astype(np.int64)) >= 0).all() or kind == "raw_events"


@given(items=st.lists(packet, max_size=60), size=st.integers(1, 9))
def test_batch_size_does_not_change_times(items: list[Any], size: int) -> None:
    packets = encode_items(items * 3)
    expected = {kind: getattr(stream(packets), kind)(timing=True).columns() for kind in TABLES}
    one = stream(packets)
    assert isinstance(one.settings, Settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_tables, "BATCH_ROWS", size)
        patch.setattr(timing_samples, "_MAX_PENDING_BATCHES", 1 << 20)
        for settings in (one.settings, replace(one.settings, walk=True)):
            for kind in TABLES:
                found = getattr(replace(one, settings=settings), kind)(timing=True).columns()
                for name, column in expected[kind].items():
                    assert np.array_equal(column, found[name], equal_nan=column.dtype.kind == "f")


@given(items=st.lists(packet, max_size=60), size=st.integers(1, 9), most=st.integers(2, 20))
def test_fewer_samples_widen_bounds(items: list[Any], size: int, most: int) -> None:
    packets = encode_items(items * 3)
    whole = stream(packets).instructions(timing=True).columns()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_tables, "BATCH_ROWS", size)
        patch.setattr(timing_samples, "_MAX_PENDING_BATCHES", 0)
        patch.setattr(timing_samples, "_MAX_SAMPLES", most)
        part = stream(packets).instructions(timing=True).columns()
    assert np.array_equal(part["ip"], whole["ip"])
    went_back = (np.diff(whole["earliest"].astype(np.int64)) < 0).any()
    if not went_back:
        assert (part["earliest"] <= whole["earliest"]).all()
        assert (part["latest"] >= whole["latest"]).all()
    assert (part["earliest"] <= part["time"]).all()
    assert (part["time"] <= part["latest"]).all()


def test_packets_have_bounds() -> None:
    packets = cyc(4) + mtc(1) + TAKEN + tsc(START + 50)
    one = stream(packets)
    table = one.packets(timing=True)
    names = [row.name for row in table.rows()]
    times = dict(zip(names, list_columns(table, "time", "cycles", "frequency"), strict=True))
    assert times["CYC"] == (START + 10, 4, 0.5)
    assert times["MTC"] == times["TNT"] == (START + 10, 4, 0.4)
    assert list_columns(table, "time")[-1] == (START + 50,)
    where = rtit.trace.Selection(time=rtit.trace.TimeRange(START + 9, START + 20))
    assert [row.name for row in one.packets(where).rows()] == ["CYC", "MTC", "TNT"]


def test_packets_lie_between_known_times() -> None:
    # an MTC is 10 ticks, a cycle 2; a timing packet has its own time
    table = stream(cyc(4) + TAKEN + mtc(1) + PASSED + tsc(START + 50)).packets(timing=True)
    assert repr(table).endswith("payload, time, earliest, latest, cycles, frequency>")
    names = [row.name for row in table.rows()]
    first = names.index("PSBEND") + 1
    found = list_columns(table, "earliest", "latest", "cycles")
    assert dict(zip(names[first:], found[first:], strict=True)) == {
        "CYC": (START, START + 10, 4),
        "TNT": (START + 10, START + 50, 4),
        "MTC": (START + 10, START + 10, 4),
        "TSC": (START + 50, START + 50, 4),
    }
    assert found[names.index("TSC")] == (START, START, 0)
    assert found[0] == (0, START, 0)


@given(items=st.lists(packet, max_size=60), mtcs=st.booleans())
def test_packet_times_lie_within_their_bounds(items: list[Any], mtcs: bool) -> None:
    one = stream(encode_items(items), **({} if mtcs else {"cpuid_15": (0, 0)}))
    timed = one.packets(timing=True).columns()
    where = rtit.trace.Selection(time=rtit.trace.TimeRange(0, UNKNOWN - 1))
    plain = one.packets(where).columns()
    whole = one.packets().columns()
    for name in ("kind", "offset", "payload", "detail"):
        assert np.array_equal(timed[name], whole[name])
    assert (timed["earliest"] <= timed["latest"]).all()
    within = np.clip(plain["time"], timed["earliest"], timed["latest"])
    assert np.array_equal(timed["time"], within)
    for name in ("offset", "cycles", "frequency"):
        assert np.array_equal(timed[name], plain[name], equal_nan=name == "frequency")
    told_it = np.isin(timed["kind"], [PACKET_KINDS.index("TSC")])
    assert (timed["earliest"] == timed["time"])[told_it].all()


@given(items=st.lists(packet, max_size=60))
def test_row_ends_before_its_packet(items: list[Any]) -> None:
    one = stream(encode_items(items))
    packets = one.packets(timing=True).columns()
    assume((np.diff(packets["earliest"].astype(np.int64)) >= 0).all())
    names = [row.name for row in one.packets().rows()]
    until = dict(zip(packets["offset"].tolist(), packets["latest"].tolist(), strict=True))
    results = {at for at, name in zip(until, names, strict=True) if name == "TNT"}
    found = list_columns(one.blocks(timing=True), "offset", "latest")
    assert [latest for at, latest in found if at in results] == [
        until[at] for at, _ in found if at in results
    ]


def test_ipc_of_rows_is_that_between_cycs() -> None:
    """Five instructions in the ten cycles between two CYCs, then two in four. Code before the first
    CYC, after the last one, or where cycles were lost has no IPC.
    """
    # 1000 jnz 1004, 1004 jnz 1000: of TNTs TT two blocks of an instruction each begin
    packets = cyc(8) + TAKEN + TAKEN + encode("TNT", bits="N") + cyc(10)
    packets += encode("TNT", bits="T") + TAKEN + cyc(4) + TAKEN
    one = stream(packets)
    rows = list_columns(one.blocks(timing=True), "instructions", "cycles")
    ratios = one.blocks(timing=True).columns()["ipc"].tolist()
    sums = {cycles: sum(n for n, of in rows if of == cycles) for _, cycles in rows}
    assert list(sums) == [0, 8, 18, 22]
    for value, (_, cycles) in zip(ratios, rows, strict=True):
        wanted = {8: sums[8] / 10, 18: sums[18] / 4}.get(cycles)
        assert value == wanted if wanted is not None else np.isnan(value)
    lost = stream(
        packets.replace(
            cyc(10), encode("OVF") + encode("FUP", ip_bytes=1, payload=0x1000) + cyc(10)
        )
    )
    known = lost.instructions(timing=True).columns()
    *cut, after = known["ipc"][known["cycles"] == 8].tolist()
    assert np.isnan(cut).all()
    # the CYC counts from the OVF on
    assert after == 1 / 10
    assert not np.isnan(known["ipc"][known["cycles"] == 18]).any()


def reference_ipc(cycles: list[int], spans: list[int]) -> list[float]:
    """Compute the IPC row by row, by its definition."""
    found = []
    for row, (now, span) in enumerate(zip(cycles, spans, strict=True)):
        first = next(at for at in range(len(cycles)) if (cycles[at], spans[at]) == (now, span))
        until = next(
            (at for at in range(row, len(cycles)) if (cycles[at], spans[at]) != (now, span)), None
        )
        if not now or until is None or spans[until] != span:
            found.append(float("nan"))
        else:
            found.append((until - first) / (cycles[until] - now))
    return found


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.sampled_from((0, 0, 0, 1)))),
    size=st.integers(0, 5),
)
def test_batch_size_does_not_change_ipc(rows: list[tuple[int, int]], size: int) -> None:
    cycles = np.cumsum([passed * 3 for passed, _ in rows]).astype(np.uint64)
    spans = np.cumsum([new for _, new in rows]).astype(np.uint64)
    ips = np.zeros(len(rows), np.uint64)
    small = np.zeros(len(rows), np.uint8)
    one = Instructions(ips, small, ips, small, small, extra_columns={"cycles": cycles})

    def batches() -> Iterator[timing_samples.TimedBatch[Instructions]]:
        step = size or len(rows) or 1
        for at in range(0, len(rows), step):
            part = slice(at, at + step)
            yield timing_samples.TimedBatch(one.select_rows(part), spans[part])
            yield timing_samples.TimedBatch(one.select_rows(slice(0, 0)), spans[:0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing_samples, "_MAX_PENDING_BATCHES", 1 << 20)
        found = [
            value for batch in timing_samples.add_ipc(batches()) for value in batch.ipc.tolist()
        ]
    wanted = reference_ipc(cycles.tolist(), spans.tolist())
    assert np.array_equal(found, wanted, equal_nan=True)
    # with a smaller buffer some are unknown
    part = [value for batch in timing_samples.add_ipc(batches()) for value in batch.ipc.tolist()]
    assert all(a == b or np.isnan(a) for a, b in zip(part, wanted, strict=True))
