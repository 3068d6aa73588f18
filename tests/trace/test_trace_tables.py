"""Tables of all streams of a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import rtit
from rtit.errors import UsageError
from rtit.packets import encode
from rtit.trace import Selection, Settings, Stream, TimeRange, Trace
from support.streams import SYNC

BACK = encode("TIP", ip_bytes=6, payload=0x1000)


@pytest.fixture
def trace() -> Trace:
    """Return a trace of threads 5 and 6 with 3 and 2 times jmp rax; the second has lost bytes."""
    made = rtit.decode(SYNC + BACK * 3, rtit.Image().add(0x1000, b"\xff\xe0"))
    (one,) = made.streams
    (other,) = rtit.decode(SYNC + BACK * 2 + b"\x05" + SYNC).streams
    made.streams[:] = [
        replace(one, tid=5, pid=5, name="one"),
        replace(one, source=other.source, tid=6, pid=6, cpu=2, name="other"),
    ]
    return made


def test_trace_table_concatenates_streams(trace: Trace) -> None:
    columns = trace.instructions().columns()
    assert columns["ip"].tolist() == [0x1000] * 5
    assert columns["tid"].tolist() == [5, 5, 5, 6, 6]
    assert columns["cpu"].tolist() == [-1, -1, -1, 2, 2]
    for batch in trace.blocks():
        assert batch.tid.tolist() == [batch.tid[0]] * len(batch)
    names = "source, target, kind, time, tid, cpu"
    assert repr(trace.branches()) == f"<Table of Branches: {names}>"
    assert trace.packets().columns()["tid"].tolist() == [5] * 9 + [6] * 14
    assert trace.sync_points().columns()["tid"].tolist() == [5, 6, 6]
    assert set(trace.raw_events().columns()["tid"].tolist()) == {5, 6}


@pytest.mark.parametrize(
    "where", [Selection(tids=(6,)), Selection(comms=("other",)), Selection(cpus=(2,), pids=(6,))]
)
def test_selection_matches_streams(trace: Trace, where: Selection) -> None:
    assert trace.instructions(where).columns()["tid"].tolist() == [6, 6]
    assert {span.kind for span in trace.ledger(where)} == {"exact", "lost"}


def test_unmatched_selection_raises_usage_error(trace: Trace) -> None:
    with pytest.raises(UsageError, match="no such stream; the recording has: thread 5"):
        trace.instructions(Selection(tids=(7,)))
    with pytest.raises(UsageError, match="no mapped file has this function"):
        trace.blocks(Selection(functions=("main",)))


def test_ledger_table_has_all_streams(trace: Trace) -> None:
    ledger = trace.ledger()
    assert ledger.tid.tolist() == [5, 6, 6, 6]
    assert [span.kind for span in ledger] == ["exact", "exact", "lost", "exact"]
    assert [str(span) for span in ledger] == [
        str(span) for stream in trace.streams for span in stream.ledger()
    ]


def test_unknown_column_raises_attribute_error(trace: Trace) -> None:
    (batch,) = trace.streams[0].blocks()
    for name in ("tid", "nothing"):
        with pytest.raises(AttributeError, match=f"Rows has no column '{name}'"):
            getattr(batch, name)


def test_tables_of_a_recording_have_functions_and_times(traces: Path) -> None:
    folder = traces / "hase"
    recorded = "/home/joerg/git/angr/hase/tests/bin/control_flow/control_flow"
    path_map = {recorded: str(folder / "control_flow.elf")}
    with Trace(folder / "control_flow-skylake.perf.data", path_map=path_map) as trace:
        lines = (folder / "control_flow-skylake.ips.txt").read_text().split()
        truth = [int(line, 16) for line in lines]
        whole = trace.instructions().columns()
        assert whole["ip"].tolist() == truth
        assert set(whole["cpu"].tolist()) == {1}
        symbols = trace.images.files.symbols(recorded, None)
        assert symbols is not None
        start = next(each for each in symbols.functions if each.name == "main")
        inside = trace.instructions(Selection(functions=("main",))).columns()["ip"]
        within = [ip for ip in truth if start.address <= ip < start.address + start.size]
        assert inside.tolist() == within
        assert trace.clock is not None
        when = sorted({trace.clock.to_nanoseconds(int(time)) for time in whole["time"]})
        first = trace.instructions(Selection(time=TimeRange(last=when[0]))).columns()["ip"]
        rest = trace.instructions(Selection(time=TimeRange(first=when[0] + 1))).columns()["ip"]
        assert [*first.tolist(), *rest.tolist()] == truth


def _stream(settings: dict[str, int], packets: bytes) -> Stream:
    image = rtit.Image().add(0x1000, b"\xff\xe0")
    return rtit.decode(SYNC + packets, image, **settings).streams[0]  # type: ignore[arg-type]


def test_counts_have_cycles_and_frequency() -> None:
    # 50 cycles in 100 ticks of the TSC, between two PSBs
    packets = encode("CYC", cycles=50) + BACK * 5
    later = SYNC.replace(encode("TSC", tsc=1 << 20), encode("TSC", tsc=(1 << 20) + 100))
    counts = _stream({"nom_freq": 10}, packets + later).counts()
    assert (counts.cycles, counts.measured_cycles, counts.measured_ticks) == (50, 50, 100)
    assert (counts.ipc, counts.frequency) == (5 / 50, 0.5)
    none = _stream({}, BACK).counts()
    assert (none.cycles, none.ipc, none.frequency, none.inactive_ticks) == (0, None, None, 0)


def test_guest_tsc_converts_times() -> None:
    guest = encode("PIP", nr=1, cr3=0x5000) + encode("TSC", tsc=20_000 // 2 + 7000)
    image = rtit.Image().add(0x1000, b"\xff\xe0")
    head = SYNC.replace(encode("TSC", tsc=1 << 20), encode("TSC", tsc=10_000))
    (stream,) = rtit.decode(head + guest + BACK * 3, image, guest_tsc=(7000, 1 << 47)).streams
    assert stream.blocks().columns()["time"].tolist()[-1] == 20_000
    with pytest.raises(UsageError, match="guest_tsc multiplier is -1"):
        rtit.decode(b"", guest_tsc=(0, -1))
    assert Settings().guest_tsc == (0, 1 << 48)
