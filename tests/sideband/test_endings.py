"""How processes ended, put together from their threads' records."""

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


def ended(*records: perf.Record) -> list[ProcessExit]:
    endings = ProcessExits()
    for time, record in enumerate(records):
        endings.apply(time, record)
    return endings.processes


def test_files_of_perf_do_not_say() -> None:
    assert ended(exits(1, 1), exits(2, 2)) == []


def test_one_thread() -> None:
    ending = ExitStatus(0x300)
    assert ended(exits(1, 1, ending)) == [ProcessExit(1, 1, 0, ending)]


def test_a_thread_that_ends_alone_ends_no_process() -> None:
    assert ended(exits(1, 2, ExitStatus(0x500))) == []


def test_the_thread_that_took_the_signal_counts() -> None:
    took = ExitStatus(SIGSEGV, of_process=True, took_signal=True, fault=FAULT)
    other = ExitStatus(SIGSEGV, of_process=True)
    for records in (
        [exits(1, 2, took), exits(1, 1, other)],
        [exits(1, 1, other), exits(1, 2, took)],
    ):
        [one] = ended(*records)
        assert (one.tid, one.exit_status) == (2, took)


def test_the_process_outlives_its_first_thread() -> None:
    late = ExitStatus(0x700, of_process=True)
    [one] = ended(exits(1, 1, ExitStatus(0)), exits(1, 2, late))
    assert (one.tid, one.exit_status) == (2, late)


def test_numbers_are_used_again() -> None:
    found = ended(exits(5, 5, ExitStatus(0x100)), fork(5, 5), exits(5, 5, ExitStatus(0x200)))
    assert [each.exit_status.exit_code for each in found] == [1, 2]


def test_a_new_thread_is_no_new_process() -> None:
    assert len(ended(exits(5, 5, ExitStatus(0)), fork(5, 6), exits(5, 6, ExitStatus(0, True)))) == 1
