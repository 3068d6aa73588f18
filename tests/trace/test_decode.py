"""`rtit.decode` accepts raw PT and an image in all documented forms."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rtit
from rtit.errors import UnsupportedError, UsageError
from rtit.image import Image
from rtit.packets import encode
from rtit.trace import EventKind, Stream
from support.streams import SYNC

CODE = bytes.fromhex("ffd0")
"""1000 call rax"""
MORE = bytes.fromhex("7402 90 90 ffe0")
"""2000 jz 2004; 2002 nop; 2003 nop; 2004 jmp rax"""
LOOP = encode("TIP", ip_bytes=6, payload=0x2000) + encode("TNT", bits="N")
LOOP += encode("TIP", ip_bytes=6, payload=0x1000)
RAN = [0x1000, 0x2000, 0x2002, 0x2003, 0x2004]


def image() -> Image:
    return Image().add(0x1000, CODE).add(0x2000, MORE)


def ips(stream: Stream) -> list[int]:
    return [int(ip) for part in stream.instructions() for ip in part.ip]


def test_decode_yields_executed_instructions() -> None:
    with rtit.decode(SYNC + LOOP, image(), title="mine") as trace:
        (stream,) = trace.streams
        assert ips(stream) == RAN
        assert [span.kind for span in stream.ledger()] == ["exact"]
        assert trace.path == stream.title.replace("stream", "mine") == "mine"
        assert repr(trace) == f"<Trace 'mine'; 1 buffer, {len(SYNC + LOOP)} bytes of PT>"
        assert (trace.command_line, trace.facts, trace.clock) == ([], {}, None)
        with pytest.raises(UnsupportedError, match="mine is raw PT"):
            _ = trace.data


@pytest.mark.parametrize(
    "form",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: array("B", data),
        lambda data: array("b", [byte - 256 * (byte > 127) for byte in data]),
        lambda data: [data[:20], bytearray(data[20:21]), b"", memoryview(data)[21:]],
        lambda data: iter([data[:50], data[50:]]),
        lambda data: (data[at : at + 1] for at in range(len(data))),
    ],
)
def test_decode_accepts_bytes_like_objects_and_iterables(form: Callable[[bytes], object]) -> None:
    trace = rtit.decode(form(SYNC + LOOP), image())  # type: ignore[arg-type]
    assert ips(trace.streams[0]) == RAN


def test_live_stream_is_read_lazily_and_once() -> None:
    taken = []

    def parts() -> Iterator[bytes]:
        for number in range(1000):
            taken.append(number)
            yield SYNC + LOOP * 200

    stream = rtit.decode(parts(), image()).streams[0]
    first = next(iter(stream.rows()))
    assert len(first) > 10_000
    assert 0 < len(taken) < 500
    with pytest.raises(UsageError, match="iterator, which was read before"):
        list(stream.rows())


@pytest.mark.parametrize("data", [5, "text", None, memoryview(bytes(8))[::2], [b"", 5], [7.0]])
def test_decode_rejects_other_types(data: object) -> None:
    with pytest.raises(UsageError, match="stream"):
        rtit.decode(data).streams[0].counts()  # type: ignore[arg-type]


def test_buffer_changed_by_another_thread_does_not_crash() -> None:
    data = bytearray((SYNC + LOOP * 50) * 300)
    stop = threading.Event()

    def overwrite_buffer() -> None:
        at = 0
        while not stop.is_set():
            at = (at * 69069 + 1) % len(data)
            data[at] ^= 1 << at % 8

    thread = threading.Thread(target=overwrite_buffer)
    thread.start()
    try:
        stream = rtit.decode(data, image()).streams[0]
        for _ in range(3):
            assert sum(len(rows) for rows in stream.rows()) >= 0
            assert sum(span.end - span.start for span in stream.ledger()) == len(data)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("ip", [0x1000, None])
def test_start_state_replaces_psb(ip: int | None) -> None:
    begin = encode("TIP.PGE", ip_bytes=1, payload=0x1000) if ip is None else b""
    stream = rtit.decode(begin + LOOP, image(), start=rtit.Start(ip=ip)).streams[0]
    assert ips(stream) == RAN
    assert [span.kind for span in stream.ledger()] == ["exact"]
    kinds = [EventKind(kind) for rows in stream.rows() for kind in rows.events.kind]
    assert kinds == ([EventKind.ENABLED] if ip is None else [])
    unknown = rtit.decode(begin + LOOP, image()).streams[0]
    assert ips(unknown) == []
    assert [span.kind for span in unknown.ledger()] == ["lost"]


def test_start_state_sets_last_ip_and_mode() -> None:
    # 32-bit code: 40 is INC EAX there, and a REX prefix in 64-bit code.
    code = Image().add(0xAB_1000, bytes.fromhex("40 ffd0")).add(0xAB_2000, b"\x40\xff\xe0")
    packets = encode("TIP", ip_bytes=1, payload=0x2000) + encode("TIP", ip_bytes=1, payload=0x1000)
    start = rtit.Start(ip=0xAB_1000, bits=32, last_ip=0xAB_1000)
    stream = rtit.decode(packets, code, start=start).streams[0]
    assert ips(stream) == [0xAB_1000, 0xAB_1001, 0xAB_2000, 0xAB_2001]


def test_jobs_do_not_change_results() -> None:
    # more segments than threads
    segment = SYNC + LOOP * 1000
    count = (10 << 20) // len(segment)
    whole = segment * count
    damaged = bytearray(whole)
    for at in (1_500_000, 4_000_001, 9_000_123):
        damaged[at : at + 3] = b"\xff\x02\x00"

    def found(data: bytes | bytearray, threads: int) -> list[object]:
        (stream,) = rtit.decode(data, image(), jobs=threads).streams
        totals = stream.totals()
        ran = sum((totals.runs.instructions * totals.runs.count).tolist())
        parts = [totals.runs.start, totals.runs.count, totals.edges.source, totals.edges.count]
        return [ran, stream.counts(), list(stream.ledger()), *(part.tolist() for part in parts)]

    ran, counts, ledger, *rest = found(whole, 1)
    assert ran == len(RAN) * 1000 * count
    for threads in (0, 2, 3):
        assert found(whole, threads) == [ran, counts, ledger, *rest]
    expected = found(damaged, 1)
    assert expected[2] != ledger
    for threads in (2, 4):
        assert found(damaged, threads) == expected


def test_jobs_do_not_change_order() -> None:
    # more segments than threads, and damage in some
    segment = SYNC + LOOP * 400
    data = bytearray(segment * ((3 << 20) // len(segment)))
    for at in (300_000, 900_001, 1_900_123):
        data[at : at + 3] = b"\xff\x02\x00"

    def found(threads: int) -> list[object]:
        (stream,) = rtit.decode(data, image(), jobs=threads).streams
        tables: list[object] = []
        for table in (stream.blocks(), stream.instructions(), stream.branches()):
            columns = table.columns()
            tables += [(name, column.tolist()) for name, column in columns.items()]
            tables += [stream.counts(), list(stream.ledger())]
        tables.append([event for events in stream.raw_events() for event in events])
        tables += [b"".join(part) for part in zip(*stream.runs(), strict=True)]
        return tables

    expected = found(1)
    for threads in (2, 3):
        for one, other in zip(found(threads), expected, strict=True):
            assert one == other


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpu": "sixth"}, "cpu 'sixth': expected FAMILY/MODEL/STEPPING"),
        ({"cpu": (6, 1 << 16, 0)}, "cpu model is 65536: it has 16 bits"),
        ({"mtc_freq": 16}, "mtc_freq is 16"),
        ({"nom_freq": -1}, "nom_freq is -1"),
        ({"cpuid_15": (1 << 32, 2)}, "EAX is 4294967296"),
        ({"start": rtit.Start(bits=8)}, "start bits is 8"),
        ({"start": rtit.Start(ip=1 << 64)}, "start ip is"),
        ({"ranges": [(0, 1)] * 5}, "5 filter ranges"),
        ({"jobs": 256}, "jobs is 256"),
        ({"jobs": -1}, "jobs is -1"),
    ],
)
def test_settings_out_of_range_raise_usage_error(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rtit.decode(b"", **settings)  # type: ignore[arg-type]


def test_processor_selects_the_errata(traces: Path) -> None:
    # BDM70: a PSB+ before TIP.PGE wrongly has a FUP; elsewhere it is an error.
    folder = traces / "libipt-cases"
    code = Image().add_file(folder / "bdm70-psb_fup-tip_pge.bin", 0x100000)
    data = (folder / "bdm70-psb_fup-tip_pge.pt").read_bytes()
    text = rtit.decode(data, code, cpu="6/61/4").streams[0]
    numbers = rtit.decode(data, code, cpu=(6, 61, 4)).streams[0]
    assert ips(text) == ips(numbers)
    assert text.settings == numbers.settings
