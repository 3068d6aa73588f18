"""How processes ended, put together from their threads' records."""

from __future__ import annotations

from signal import SIGSEGV

from rtit.perfdata import Ending, Fault
from rtit.perfdata import records as perf
from rtit.perfdata.records import pack_ending
from rtit.sideband.processes import Ended, Endings

FAULT = Fault(0x401000, 1, 0x10)


def exits(pid: int, tid: int, ending: Ending | None = None) -> perf.Exit:
    rest = pack_ending(ending) if ending is not None else b""
    return perf.Exit(0, 4, 0, 0, None, pid, pid, tid, tid, 0, rest)


def fork(pid: int, tid: int) -> perf.Fork:
    return perf.Fork(0, 7, 0, 0, None, pid, 1, tid, 1, 0)


def ended(*records: perf.Record) -> list[Ended]:
    endings = Endings()
    for time, record in enumerate(records):
        endings.apply(time, record)
    return endings.processes


def test_perf_recordings_have_no_exit_status() -> None:
    assert ended(exits(1, 1), exits(2, 2)) == []


def test_one_thread() -> None:
    ending = Ending(0x300)
    assert ended(exits(1, 1, ending)) == [Ended(1, 1, 0, ending)]


def test_a_thread_that_ends_alone_ends_no_process() -> None:
    assert ended(exits(1, 2, Ending(0x500))) == []


def test_process_ending_is_that_of_the_thread_that_took_the_signal() -> None:
    took = Ending(SIGSEGV, of_process=True, took_signal=True, fault=FAULT)
    other = Ending(SIGSEGV, of_process=True)
    for records in (
        [exits(1, 2, took), exits(1, 1, other)],
        [exits(1, 1, other), exits(1, 2, took)],
    ):
        [one] = ended(*records)
        assert (one.tid, one.ending) == (2, took)


def test_process_lives_after_its_first_thread_ended() -> None:
    late = Ending(0x700, of_process=True)
    [one] = ended(exits(1, 1, Ending(0)), exits(1, 2, late))
    assert (one.tid, one.ending) == (2, late)


def test_reused_tid_has_its_own_ending() -> None:
    found = ended(exits(5, 5, Ending(0x100)), fork(5, 5), exits(5, 5, Ending(0x200)))
    assert [each.ending.exit_code for each in found] == [1, 2]


def test_new_thread_starts_no_process() -> None:
    assert len(ended(exits(5, 5, Ending(0)), fork(5, 6), exits(5, 6, Ending(0, True)))) == 1
