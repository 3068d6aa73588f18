"""Where a stream cannot be followed, perf reports the same address and time as rtit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from differential.oracles import perf
from kernel import recording
from kernel.machine import Machine
from rtit.trace import ErrorClass, Trace
from rtit.trace.events import DecodingLoss, Overflow

NO_CODE, MISMATCH, OVERFLOW = 5, 6, 7
"""Error numbers of perf's decoder."""


def errors_from_perf(data: Path) -> list[perf.TraceError]:
    try:
        return perf.errors(data)
    except perf.PerfMissingError as error:
        pytest.skip(str(error))


def test_overflows_have_the_time_thread_and_ip_of_perf(tmp_path: Path) -> None:
    """The processor loses packets of two threads; the IP is that where the path continues."""
    machine = Machine()
    one, two = machine.threads
    lost = []
    for thread in (two, one, two):
        machine.syscall()
        machine.driver.advance_to(machine.ip)
        machine.cpu.unit.begin_overflow()
        machine.syscall(calls="made_open")
        machine.driver.advance_to(machine.ip)
        machine.cpu.unit.end_overflow(machine.ip)
        lost.append((machine.now.tid, machine.ip))
        machine.syscall()
        machine.syscall(thread)
    data = recording.write(machine, tmp_path / "perf.data")
    listed = errors_from_perf(data)
    assert [error.code for error in listed] == [OVERFLOW] * 3
    with Trace(data) as trace:
        (stream,) = trace.streams
        found = [event for event in stream.events() if isinstance(event, Overflow)]
        assert trace.clock is not None
        times = [trace.clock.to_nanoseconds(each.time) for each in found]
    assert [(error.tid, error.ip) for error in listed] == lost
    assert [each.ip for each in found] == [ip for _, ip in lost]
    assert [error.time for error in listed] == times


@pytest.mark.parametrize("mode", ["threads", "CPUs, all switches"])
def test_missing_code_is_lost_where_perf_reports_it(
    mode: str,
    recording_of_mode: Callable[[str], Path],
    program: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """perf reports the first address in a file, and no other in the same file."""
    path = str(program("threads")).encode()
    content = recording_of_mode(mode).read_bytes()
    assert path in content
    data = tmp_path / "perf.data"
    data.write_bytes(content.replace(path, path[:-1] + b"?"))
    listed = errors_from_perf(data)
    assert [error.code for error in listed] == [NO_CODE]
    with Trace(data) as trace:
        assert trace.clock is not None
        found = {
            (stream.tid, trace.clock.to_nanoseconds(event.time), event.value)
            for stream in trace.threads
            for event in stream.events()
            if isinstance(event, DecodingLoss)
        }
    assert {(error.tid, error.time, error.ip) for error in listed} <= found


@pytest.mark.parametrize(
    ("label", "code"),
    [
        ("if_not_switching", "c3"),  # a RET that takes no TNT of a conditional branch
        ("leave", "909090"),  # a TIP where nothing leaves the kernel
        ("after_call", "7500"),  # a branch more than was taken
    ],
)
def test_contradicting_code_is_lost_where_perf_reports_it(
    label: str, code: str, tmp_path: Path
) -> None:
    """The recorded copy of the kernel's code contradicts the path of one thread.

    perf reports the time of the packet before, rtit that of the packet that contradicts the
    code. Afterwards the decoders guess differently.
    """
    machine = Machine()
    machine.interrupt()
    machine.syscall()
    data = recording.write(machine, tmp_path / "perf.data")
    kcore = data / "kcore_dir" / "kcore"
    content = bytearray(kcore.read_bytes())
    file_offset = recording.PAGE + machine.at[label] - machine.at[recording.REF]
    content[file_offset : file_offset + len(code) // 2] = bytes.fromhex(code)
    kcore.write_bytes(content)
    first = errors_from_perf(data)[0]
    assert first.code == MISMATCH
    with Trace(data) as trace:
        (stream,) = trace.streams
        found = [event for event in stream.events() if isinstance(event, DecodingLoss)]
        assert trace.clock is not None
        time = trace.clock.to_nanoseconds(found[0].time)
        last = max(int(batch.time.max()) for batch in stream.packets(timing=True))
        end = trace.clock.to_nanoseconds(last)
        causes = [span.cause for span in stream.ledger() if span.is_gap and span.cause is not None]
    assert causes[0] == ErrorClass.DISAGREEMENT
    assert (stream.tid, found[0].value) == (first.tid, first.ip)
    assert first.time is not None
    assert first.time <= time <= end
