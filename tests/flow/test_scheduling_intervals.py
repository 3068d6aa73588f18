"""Threads that share a logical processor: the code of each interval, and skipped intervals."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rtit.packets import encode

core = pytest.importorskip("rtit._core", reason="the native module is not built")

# 1000 nop; 1001 nop; 1002 jmp rax
ONE = "90 90 ffe0"
# 1000 nop of two bytes; 1002 jmp rax
TWO = "6690 ffe0"


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def tsc(time: int) -> bytes:
    return encode("TSC", tsc=time)


PSB = encode("PSB") + tsc(10) + b"\x99\x01" + encode("PSBEND")


def run_packets(ip: int = 0x1002) -> bytes:
    """Encode user code from 1000 up to an interrupt."""
    return ip_packet("TIP.PGE", 0x1000) + ip_packet("FUP", ip) + encode("TIP.PGD", ip_bytes=0)


def space(code: str) -> Any:
    made = core.Space()
    made.map(0, 0x1000, bytes.fromhex(code))
    return made


def flow(stream: bytes, intervals: list[Any], *, walk: bool = False, default: str = ONE) -> Any:
    return core.StreamDecoder(
        stream, space(default), schedule=native_intervals(intervals), walk=walk
    )


def native_intervals(intervals: list[Any], idle: tuple[int, ...] = ()) -> Any:
    """Return (since, code) pairs in the form of the native decoder."""
    since, numbers = array("Q", [time for time, _ in intervals]), array("I", range(len(intervals)))
    return since, numbers, [(code, time in idle, None, None) for time, code in intervals]


def ips(made: Any) -> list[int]:
    found = array("Q")
    while (part := made.instructions(100)) is not None:
        found.extend(part["ip"])
    return list(found)


def kinds(made: Any) -> list[str]:
    return [row[2] for row in made.ledger()]


ONCE = [0x1000, 0x1001]
OTHER = [0x1000]


@pytest.mark.parametrize("walk", [False, True])
def test_each_interval_decodes_with_its_own_code(walk: bool) -> None:
    stream = PSB + run_packets() + tsc(20) + run_packets() + tsc(30) + run_packets()
    one, two = space(ONE), space(TWO)
    made = flow(stream, [(0, one), (15, two), (25, one)], walk=walk)
    assert ips(made) == ONCE + OTHER + ONCE
    assert kinds(made) == ["exact"]
    # before the first interval the default code applies
    made = flow(stream, [(25, two)], walk=walk)
    assert ips(made) == ONCE + ONCE + OTHER


def test_interval_includes_its_first_tick() -> None:
    stream = PSB + tsc(20) + run_packets()
    assert ips(flow(stream, [(20, space(TWO))])) == OTHER
    assert ips(flow(stream, [(21, space(TWO))])) == ONCE


@pytest.mark.parametrize("walk", [False, True])
def test_skipped_interval_is_elsewhere_in_the_ledger(walk: bool) -> None:
    begin = PSB + run_packets() + tsc(20)
    passed = ip_packet("TIP.PGE", 0x7000) + b"\x0a\x06" + ip_packet("TIP", 0x8000) + run_packets()
    made = flow(begin + passed + tsc(30) + run_packets(), [(15, None), (25, space(ONE))], walk=walk)
    assert ips(made) == ONCE + ONCE
    spans = [(start, end, kind) for start, end, kind, *_ in made.ledger()]
    there = len(begin + passed + tsc(30))
    assert spans == [
        (0, len(begin), "exact"),
        (len(begin), there, "elsewhere"),
        (there, len(begin + passed + tsc(30) + run_packets()), "exact"),
    ]
    counts = made.counts()
    assert counts["elsewhere_bytes"] == there - len(begin)
    assert counts["instructions"] == 4


def test_last_ip_is_updated_in_skipped_intervals() -> None:
    passed = ip_packet("TIP.PGE", 0x5555_0000_1000) + encode("TIP.PGD", ip_bytes=1, payload=0x1234)
    again = encode("TIP.PGE", ip_bytes=4, payload=0x1000) + ip_packet("FUP", 0x1002)
    stream = PSB + tsc(20) + passed + tsc(30) + again + encode("TIP.PGD", ip_bytes=0)
    assert ips(flow(stream, [(15, None), (25, space(ONE))])) == ONCE


def test_psb_in_a_skipped_interval_is_elsewhere() -> None:
    """It has an IP of the other thread, whose code is unknown."""
    inside = encode("PSB") + tsc(22) + b"\x99\x01" + ip_packet("FUP", 0x9000) + encode("PSBEND")
    stream = PSB + tsc(20) + ip_packet("TIP.PGE", 0x9000) + inside + encode("TIP.PGD", ip_bytes=0)
    made = flow(stream + tsc(30) + run_packets(), [(15, None), (25, space(ONE))])
    assert ips(made) == ONCE
    assert kinds(made) == ["exact", "elsewhere", "exact"]


def test_stream_may_begin_in_a_skipped_interval() -> None:
    begin = encode("PSB") + tsc(10) + b"\x99\x01" + ip_packet("FUP", 0x9000) + encode("PSBEND")
    stream = begin + encode("TIP.PGD", ip_bytes=0) + tsc(30) + run_packets()
    made = flow(stream, [(0, None), (25, space(ONE))])
    assert ips(made) == ONCE
    assert kinds(made) == ["elsewhere", "exact"]


def test_overflow_in_a_skipped_interval_is_lost_data() -> None:
    stream = PSB + tsc(20) + ip_packet("TIP.PGE", 0x7000) + encode("OVF") + ip_packet("FUP", 0x7777)
    made = flow(stream + encode("TIP.PGD", ip_bytes=0) + tsc(30) + run_packets(), [(15, None)])
    assert ips(made) == []
    assert "lost" in kinds(made)


def test_code_across_an_interval_start_is_lost() -> None:
    stream = PSB + ip_packet("TIP.PGE", 0x1000) + tsc(20) + ip_packet("FUP", 0x1002)
    made = flow(
        stream + encode("TIP.PGD", ip_bytes=0) + run_packets(), [(0, space(ONE)), (15, None)]
    )
    ips(made)
    rows = made.ledger()
    assert [row[2] for row in rows] == ["exact", "lost", "elsewhere"]
    assert rows[1][4].startswith("another thread had the processor from TSC 0xf on")
    assert rows[1][6] == 15
    # and not if it ends before
    made = flow(PSB + run_packets() + tsc(20) + run_packets(), [(0, space(ONE)), (15, None)])
    ips(made)
    assert kinds(made) == ["exact", "elsewhere"]


def test_code_that_ends_in_the_first_tick_of_the_next_interval_is_exact() -> None:
    """With CYCs a TIP.PGD may have exactly the time of the switch."""
    stream = PSB + ip_packet("TIP.PGE", 0x1000) + tsc(15) + encode("TIP.PGD", ip_bytes=0)
    made = flow(stream + run_packets(), [(0, space(ONE)), (15, None)])
    assert ips(made) == [*ONCE, 0x1002]
    assert kinds(made) == ["exact", "elsewhere"]


def test_batch_has_rows_of_one_interval() -> None:
    stream = PSB + run_packets() + tsc(20) + run_packets() + run_packets() + tsc(30) + run_packets()
    made = flow(stream, [(0, space(ONE)), (15, space(TWO)), (25, None)])
    found = []
    while (columns := made.rows(1000)) is not None:
        found.append((made.intervals_begun, list(array("I", columns["instructions"]))))
    assert [(turn, rows) for turn, rows in found if rows] == [(1, [2]), (2, [1, 1])]
    made = flow(stream, [(0, space(ONE)), (15, space(TWO)), (25, None)])
    hashed = []
    while (runs := made.runs(1000)) is not None:
        hashed.append((made.intervals_begun, list(array("I", runs[1]))))
    assert [each for each in hashed if each[1]] == [(1, [2]), (2, [1, 1])]


def test_decoder_lists_intervals_with_executed_code() -> None:
    stream = PSB + run_packets() + tsc(20) + tsc(30) + run_packets() + run_packets() + tsc(40)
    made = flow(stream, [(15, None), (25, None), (35, None)])
    made.count()
    assert made.visited_intervals == [0, 2]


def test_invalid_intervals_are_rejected() -> None:
    with pytest.raises(ValueError, match="an interval at 3 follows one at 5"):
        flow(PSB, [(5, None), (3, None)])
    one = [(None, False, None, None)]
    with pytest.raises(ValueError, match="thread 1 of 1 in an interval"):
        core.StreamDecoder(PSB, space(ONE), schedule=(array("Q", [1]), array("I", [1]), one))
    with pytest.raises(ValueError, match="2 starts of 1 intervals"):
        core.StreamDecoder(PSB, space(ONE), schedule=(array("Q", [1, 2]), array("I", [0]), one))


def mtc(ctc: int) -> bytes:
    return encode("MTC", ctc=ctc)


def ambiguous_starts(
    stream: bytes, intervals: list[Any], idle: tuple[int, ...] = ()
) -> list[tuple[int, int]]:
    """Return (offset of the report, start of the ambiguous bytes) of each ambiguous interval
    start.
    """
    made = core.StreamDecoder(
        stream, space(ONE), schedule=native_intervals(intervals, idle), mtc_freq=0, tsc_ctc=(10, 1)
    )
    while made.instructions(100) is not None:
        pass
    rows = made.ledger()
    assert made.counts()["errors"].get("ambiguous thread", 0) == sum(
        row[3] == "ambiguous thread" for row in rows
    )
    assert {row[2] for row in rows} <= {"exact", "elsewhere"}
    return [(row[0], row[6]) for row in rows if row[3] == "ambiguous thread"]


TMA = encode("TMA", ctc=0, fast_counter=0)
BEGIN = encode("PSB") + tsc(10) + TMA + b"\x99\x01" + encode("PSBEND")


SKIPPED = None
# TSC 10 | run | run | MTC: TSC 20 | run        the second interval starts at TSC 15
TWO_RUNS = BEGIN + run_packets() + run_packets()


@pytest.mark.parametrize(
    ("first", "second", "idle", "ambiguous"),
    [
        pytest.param(ONE, TWO, (), [(len(TWO_RUNS), len(BEGIN))], id="two decoded threads"),
        pytest.param(ONE, SKIPPED, (), [(len(TWO_RUNS), len(BEGIN))], id="second thread skipped"),
        pytest.param(SKIPPED, TWO, (), [(len(TWO_RUNS), len(BEGIN))], id="first thread skipped"),
        pytest.param(ONE, TWO, (15,), [], id="second interval is idle"),
    ],
)
def test_mtc_after_two_runs_leaves_interval_start_ambiguous(
    first: str | None,
    second: str | None,
    idle: tuple[int, ...],
    ambiguous: list[tuple[int, int]],
) -> None:
    code = [None if each is SKIPPED else space(each) for each in (first, second)]
    intervals = list(zip((0, 15), code, strict=True))

    assert ambiguous_starts(TWO_RUNS + mtc(1) + run_packets(), intervals, idle) == ambiguous


def test_timed_packet_between_runs_narrows_the_ambiguous_span() -> None:
    one, two = space(ONE), space(TWO)
    stream = (
        BEGIN
        + run_packets()
        + mtc(1)
        + run_packets()
        + mtc(2)
        + run_packets()
        + mtc(3)
        + run_packets()
    )
    at = [len(BEGIN + (run_packets() + mtc(1)) * number) for number in range(4)]
    for since, place in ((15, 0), (20, 0), (21, 1), (30, 1), (35, 2)):
        (found,) = ambiguous_starts(stream, [(0, one), (since, two)])
        assert found == (at[place + 1] - len(mtc(1)), at[place])
    # no packet has the time of the last run
    assert ambiguous_starts(stream, [(0, one), (45, two)]) == []
    # cycles right before a run have it: here 20 ticks each from 180 on
    cycles = b"".join(encode("CYC", cycles=8) + run_packets() for _ in range(9))
    timed = BEGIN + mtc(1) + encode("CYC", cycles=64) + mtc(17) + cycles
    assert ambiguous_starts(timed + mtc(90), [(0, one), (400, two)]) == []
    assert len(ambiguous_starts(timed + run_packets() + mtc(99), [(0, one), (900, two)])) == 1


def test_tsc_while_tracing_is_off_makes_interval_start_certain() -> None:
    """A TSC while tracing is off shows that the unit was enabled again for another thread. All code
    before ran in one thread, unless there were two switches.
    """
    one, two = space(ONE), space(TWO)
    stream = BEGIN + run_packets() + run_packets() + tsc(30) + run_packets()
    assert ambiguous_starts(stream, [(0, one), (15, two)]) == []
    assert len(ambiguous_starts(stream, [(0, one), (15, two), (20, one)])) == 1
    assert ambiguous_starts(stream, [(0, one), (15, two), (20, one)], idle=(15,)) == []
