"""Exit status of processes, from the EXIT records of their threads."""

from __future__ import annotations

from signal import SIGSEGV

from rtit.perfdata import ExitStatus, Fault
from rtit.perfdata import records as perf
from rtit.perfdata.records import pack_exit_status
from rtit.sideband.processes import ProcessExit, ProcessExits

FAULT = Fault(0x401000, 1, 0x10)


def exits(pid: int, tid: int, ending: ExitStatus | None = None) -> perf.Exit:
    rest = pack_exit_status(ending) if ending is not None else b""
    return perf.Exit(0, 4, 0, 0, None, pid, pid, tid, tid, 0, rest)


def fork(pid: int, tid: int) -> perf.Fork:
    return perf.Fork(0, 7, 0, 0, None, pid, 1, tid, 1, 0)


def process_exits(*records: perf.Record) -> list[ProcessExit]:
    endings = ProcessExits()
    for time, record in enumerate(records):
        endings.apply_record(time, record)
    return endings.exits_in_order


def test_perf_files_have_no_exit_status() -> None:
    assert process_exits(exits(1, 1), exits(2, 2)) == []


def test_exit_status_of_single_thread() -> None:
    ending = ExitStatus(0x300)
    assert process_exits(exits(1, 1, ending)) == [ProcessExit(1, 1, 0, ending)]


def test_exit_of_one_thread_is_not_process_exit() -> None:
    assert process_exits(exits(1, 2, ExitStatus(0x500))) == []


def test_thread_that_took_signal_is_reported() -> None:
    took = ExitStatus(SIGSEGV, of_process=True, took_signal=True, fault=FAULT)
    other = ExitStatus(SIGSEGV, of_process=True)
    for records in (
        [exits(1, 2, took), exits(1, 1, other)],
        [exits(1, 1, other), exits(1, 2, took)],
    ):
        [one] = process_exits(*records)
        assert (one.tid, one.exit_status) == (2, took)


def test_process_outlives_first_thread() -> None:
    late = ExitStatus(0x700, of_process=True)
    [one] = process_exits(exits(1, 1, ExitStatus(0)), exits(1, 2, late))
    assert (one.tid, one.exit_status) == (2, late)


def test_reused_pid_has_second_exit() -> None:
    found = process_exits(
        exits(5, 5, ExitStatus(0x100)), fork(5, 5), exits(5, 5, ExitStatus(0x200))
    )
    assert [each.exit_status.exit_code for each in found] == [1, 2]


def test_new_thread_keeps_process_exit() -> None:
    assert (
        len(process_exits(exits(5, 5, ExitStatus(0)), fork(5, 6), exits(5, 6, ExitStatus(0, True))))
        == 1
    )
