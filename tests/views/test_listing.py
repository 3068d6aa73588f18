"""`rtit instructions`: selection options, and threads merged by time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.trace import Trace
from support.recordings import RecordedProgram, Recorder

ProgramBuilder = Callable[[str], Path]


@pytest.fixture(scope="module")
def threads(program: ProgramBuilder, record: Recorder) -> RecordedProgram:
    return record([program("threads")])


def list_instructions(capfd: pytest.CaptureFixture[str], data: Path, *options: str) -> list[str]:
    assert main(["instructions", *options, str(data)]) == 0
    found = capfd.readouterr()
    assert found.err == ""
    return found.out.splitlines()


def test_listing_equals_instructions_of_table(
    threads: RecordedProgram, capfd: pytest.CaptureFixture[str]
) -> None:
    found = [
        line.split() for line in list_instructions(capfd, threads.data, "--fields", "tid,time,ip")
    ]
    with Trace(threads.data) as trace:
        clock = trace.data.time_conversion
        assert clock is not None
        assert [
            tuple(map(int, (tid, time, f"0x{ip}"), (10, 10, 16))) for tid, time, ip in found
        ] == [
            (stream.tid, clock.to_nanoseconds(int(time)), int(ip))
            for stream in trace.streams
            for part in stream.instructions()
            for ip, time in zip(part.ip, part.time, strict=True)
        ]


def test_merge_orders_threads_by_time(
    threads: RecordedProgram, capfd: pytest.CaptureFixture[str]
) -> None:
    one_by_one = list_instructions(capfd, threads.data, "--fields", "time,tid,ip")
    order = {tid: n for n, tid in enumerate(dict.fromkeys(line.split()[1] for line in one_by_one))}
    assert len(order) > 2

    def sort_key(line: str) -> tuple[int, int]:
        time, tid, _ = line.split()
        return int(time), order[tid]

    expected = sorted(one_by_one, key=sort_key)  # stable: instructions of a run stay in order
    assert expected != one_by_one
    assert list_instructions(capfd, threads.data, "--fields", "time,tid,ip", "--merge") == expected
    for count in (0, 1, 1000):
        merged = ("--fields", "time,tid,ip", "--merge")
        head = list_instructions(capfd, threads.data, *merged, "--head", str(count))
        assert head == expected[:count]
        tail = list_instructions(capfd, threads.data, *merged, "--tail", str(count))
        assert tail == expected[len(expected) - count :]


def test_head_and_tail_apply_to_each_thread(
    threads: RecordedProgram, capfd: pytest.CaptureFixture[str]
) -> None:
    every = list_instructions(capfd, threads.data, "--fields", "tid,ip")
    tids = list(dict.fromkeys(line.split()[0] for line in every))
    by_thread = [[line for line in every if line.split()[0] == tid] for tid in tids]
    for count in (0, 1, 100):
        head = list_instructions(capfd, threads.data, "--fields", "tid,ip", "--head", str(count))
        assert head == [line for lines in by_thread for line in lines[:count]]
        tail = list_instructions(capfd, threads.data, "--fields", "tid,ip", "--tail", str(count))
        assert tail == [line for lines in by_thread for line in lines[len(lines) - count :]]


def test_function_and_range_select_instructions(
    threads: RecordedProgram, capfd: pytest.CaptureFixture[str]
) -> None:
    every = list_instructions(capfd, threads.data, "--fields", "ip,sym")
    names = [line.split()[1].partition("+")[0] for line in every]
    name = max(set(names) - {"memset", "threads"}, key=names.count)
    of_name = [line for line, each in zip(every, names, strict=True) if each == name]
    assert (
        list_instructions(capfd, threads.data, "--fields", "ip,sym", "--function", name) == of_name
    )
    assert len(of_name) > 100
    start = int(of_name[0].split()[0], 16)
    wanted = [line for line in every if start <= int(line.split()[0], 16) < start + 8]
    assert 0 < len(wanted) < len(of_name)
    some = list_instructions(
        capfd, threads.data, "--fields", "ip,sym", "--range", f"{start:x}-{start + 8:x}"
    )
    assert some == wanted


def test_time_selects_instructions(
    threads: RecordedProgram, capfd: pytest.CaptureFixture[str]
) -> None:
    every = list_instructions(capfd, threads.data, "--fields", "time,ip")
    times = sorted({int(line.split()[0]) for line in every})
    first, last = times[len(times) // 3], times[len(times) // 2]
    wanted = [line for line in every if first <= int(line.split()[0]) <= last]
    assert 0 < len(wanted) < len(every)
    assert (
        list_instructions(capfd, threads.data, "--fields", "time,ip", "--time", f"{first},{last}")
        == wanted
    )
