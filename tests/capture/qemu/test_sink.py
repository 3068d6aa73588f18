"""What the plugin says, when it stops half-way or says what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.capture.events import RECORD, Kind
from rtit.capture.options import PtOptions
from rtit.capture.qemu.messages import LEAVES, STAYS, Message
from rtit.capture.qemu.sink import Sink
from rtit.errors import RecordError
from rtit.perfdata import TimeConversion, Writer
from rtit.registers import FULL
from rtit.trace import Trace
from rtit.unit import TimeModel

TID = 77
MORE = 1


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    model = TimeModel()
    writer = Writer(
        tmp_path / "perf.data",
        config=PtOptions.parse("intel_pt//u", profile=FULL).config,
        cpuid=FULL.cpuid_text,
        cmdline=["test"],
        time=TimeConversion(model.time_shift, model.time_mult, model.time_zero),
        tsc_ctc=(model.tsc_numerator, model.tsc_denominator),
        max_nonturbo_ratio=model.max_non_turbo_ratio,
    )
    return Sink(writer, None)


def message(
    kind: int, blob: bytes = b"", *, flags: int = 0, ip: int = TID, target: int = 0
) -> bytes:
    return RECORD.pack(kind, flags, 0, TID, ip, target, 1000, 0) + blob


def test_a_sequence_without_its_end_is_kept(sink: Sink, tmp_path: Path) -> None:
    sink.feed(message(Kind.THREAD))
    psb = bytes.fromhex("0282") * 8 + bytes.fromhex("0223")
    sink.feed(message(Message.PACKETS, psb, flags=MORE))
    sink.feed(message(Message.PACKETS, b"\x04" * 6, flags=MORE))
    sink.close()
    assert sink.totals.warnings == ["a thread was killed: its last instructions are missing"]
    with Trace(tmp_path / "perf.data") as trace:
        (stream,) = trace.streams
        assert bytes(stream.read()) == psb + b"\x04" * 6
    assert sink.totals.pt_bytes == len(psb) + 6


def test_who_leaves_is_not_killed(sink: Sink) -> None:
    sink.feed(message(Kind.THREAD))
    sink.feed(message(Kind.WARNING, b"it runs unrecorded", flags=LEAVES))
    sink.close()
    assert sink.totals.warnings == [f"thread {TID}: it runs unrecorded"]


def test_who_stays_after_all_may_be_killed(sink: Sink) -> None:
    sink.feed(message(Kind.THREAD))
    sink.feed(message(Kind.WARNING, b"it runs unrecorded", flags=LEAVES))
    sink.feed(message(Kind.WARNING, b"it goes on", flags=STAYS))
    sink.close()
    assert sink.totals.warnings[2:] == ["a thread was killed: its last instructions are missing"]


def test_what_is_no_message(sink: Sink) -> None:
    with pytest.raises(RecordError, match="3 bytes"):
        sink.feed(b"abc")
    with pytest.raises(RecordError, match=f"thread {TID}"):
        sink.feed(message(Message.PACKETS, b"\0"))
    sink.feed(message(200))
    sink.close()
