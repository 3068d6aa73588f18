"""Messages of the plugin that end early or contradict each other."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtit.capture.events import EVENT_RECORD, EventFlag, EventKind
from rtit.capture.options import PtOptions
from rtit.capture.qemu.plugin_protocol import PluginMessage
from rtit.capture.qemu.sink import QemuRecordingSink
from rtit.errors import RecordError
from rtit.perfdata import TimeConversion, Writer
from rtit.registers import FULL
from rtit.trace import Trace
from rtit.unit.time_model import TimeModel

TID = 77
MORE = 1


@pytest.fixture
def sink(tmp_path: Path) -> QemuRecordingSink:
    return make_sink(tmp_path)


def make_sink(folder: Path) -> QemuRecordingSink:
    model = TimeModel()
    writer = Writer(
        folder / "perf.data",
        config=PtOptions.parse("intel_pt//u", profile=FULL).attr_config,
        cpuid=FULL.cpuid_text,
        cmdline=["test"],
        time=TimeConversion(model.time_shift, model.time_mult, model.time_zero),
        tsc_ctc=(model.tsc_numerator, model.tsc_denominator),
        max_nonturbo_ratio=model.max_non_turbo_ratio,
    )
    return QemuRecordingSink(writer, None)


def message(
    kind: int, blob: bytes = b"", *, flags: int = 0, ip: int = TID, target: int = 0
) -> bytes:
    return EVENT_RECORD.pack(kind, flags, 0, TID, ip, target, 1000, 0) + blob


def test_packets_of_incomplete_sequence_are_written(
    sink: QemuRecordingSink, tmp_path: Path
) -> None:
    sink.process_message(message(EventKind.THREAD))
    psb = bytes.fromhex("0282") * 8 + bytes.fromhex("0223")
    sink.process_message(message(PluginMessage.PACKETS, psb, flags=MORE))
    sink.process_message(message(PluginMessage.PACKETS, b"\x04" * 6, flags=MORE))
    sink.close()
    assert sink.totals.warnings == ["a thread was killed: its last instructions are missing"]
    with Trace(tmp_path / "perf.data") as trace:
        (stream,) = trace.streams
        assert bytes(stream.read()) == psb + b"\x04" * 6
    assert sink.totals.pt_bytes == len(psb) + 6


def test_process_that_leaves_the_recording_is_not_reported_killed(sink: QemuRecordingSink) -> None:
    sink.process_message(message(EventKind.THREAD))
    sink.process_message(
        message(EventKind.WARNING, b"it runs unrecorded", flags=EventFlag.WARNING_LEAVES)
    )
    sink.close()
    assert sink.totals.warnings == [f"thread {TID}: it runs unrecorded"]


def test_process_that_stays_after_failed_exec_is_reported_killed(sink: QemuRecordingSink) -> None:
    sink.process_message(message(EventKind.THREAD))
    sink.process_message(
        message(EventKind.WARNING, b"it runs unrecorded", flags=EventFlag.WARNING_LEAVES)
    )
    sink.process_message(message(EventKind.WARNING, b"it goes on", flags=EventFlag.WARNING_STAYS))
    sink.close()
    assert sink.totals.warnings[2:] == ["a thread was killed: its last instructions are missing"]


_NUMBERS = st.sampled_from([0, 1, TID, 4096, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1])
_FORGED = st.tuples(
    st.sampled_from([*EventKind, *PluginMessage]),
    st.integers(0, 255),
    st.sampled_from([TID, TID + 1, 1 << 31, (1 << 32) - 1]),
    *[_NUMBERS] * 4,
    st.sampled_from([b"", b"\xff" * 30, bytes(48) + b"/dev/zero\0", b"a" * 90_000]),
)


@given(messages=st.lists(_FORGED, max_size=8))
@example(messages=[(EventKind.THREAD, 0, TID, 1 << 40, 0, 0, 0, b"")])
@example(messages=[(EventKind.COMM, 0, TID, 1 << 31, 0, 0, 0, b"name")])
@example(messages=[(EventKind.COMM, 0, TID, TID, 0, 0, 0, b"a" * 90_000)])
@example(messages=[(EventKind.EXEC, 0, TID, TID, 0, (1 << 64) - 1, 0, b"")])
@example(
    messages=[
        (EventKind.THREAD, 0, TID, TID, 0, 0, 0, b""),
        (EventKind.EXIT, 0, TID, 1 << 32, 0, 0, 0, b""),
    ]
)
@example(messages=[(EventKind.MMAP, 0, TID, 0, 4096, 0, TID, b"cut off")])
def test_forged_messages_raise_record_error_only(
    messages: list[tuple[int, int, int, int, int, int, int, bytes]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    sink = make_sink(tmp_path_factory.mktemp("forged"))
    with contextlib.suppress(RecordError):
        for kind, flags, tid, ip, target, clock, extra, blob in messages:
            sink.process_message(
                EVENT_RECORD.pack(kind, flags, 0, tid, ip, target, clock, extra) + blob
            )
    sink.close()


def test_invalid_messages_raise_record_error(sink: QemuRecordingSink) -> None:
    with pytest.raises(RecordError, match="3 bytes"):
        sink.process_message(b"abc")
    with pytest.raises(RecordError, match=f"thread {TID}"):
        sink.process_message(message(PluginMessage.PACKETS, b"\0"))
    sink.process_message(message(200))
    sink.close()
