"""Messages of the plugin about a whole system."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.capture.events import EVENT_RECORD, EventKind
from rtit.capture.qemu.plugin_protocol import PluginMessage
from rtit.capture.qemu.system_sink import SystemRecordingSink
from rtit.perfdata import PerfData, SwitchRecords, Writer
from rtit.perfdata.log_comparisons import FACT, LogComparison, parse_comparisons


def message(kind: int, cpu: int, target: int = 0, extra: int = 0, blob: bytes = b"") -> bytes:
    return EVENT_RECORD.pack(kind, 0, 0, cpu, 0, target, 1000, extra) + blob


@pytest.mark.parametrize("differences", [0, 3])
def test_comparisons_of_all_processors_are_added(differences: int, tmp_path: Path) -> None:
    path = tmp_path / "boot.data"
    writer = Writer(
        path, config=0x2401, cpuid="GenuineIntel,6,94,3", switches=SwitchRecords.CPU_WIDE
    )
    sink = SystemRecordingSink(writer, None)
    for cpu in (0, 1):
        sink.process_message(message(EventKind.THREAD, cpu))
    for cpu, count, differ in ((0, 2000, differences), (1, 500, 0)):
        sink.process_message(message(PluginMessage.COMPARED, cpu, count, differ, b"CR3"))
        sink.process_message(message(EventKind.EXIT, cpu))
    sink.close()
    with PerfData(path) as data:
        fact = data.facts[FACT]
    assert parse_comparisons(fact) == [LogComparison("CR3", 2500, differences)]
    expected = (
        "CR3 differs in 3 of 2,500 comparisons of QEMU's log with the state of the processors"
    )
    assert sink.totals.warnings == ([expected] if differences else [])
