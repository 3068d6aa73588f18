"""ThreadTable: names of threads."""

from __future__ import annotations

from rtit.perfdata import records as perf
from rtit.perfdata.records import Misc
from rtit.sideband import ThreadTable


def comm(pid: int, tid: int, name: str) -> perf.Comm:
    return perf.Comm(0, 3, Misc.USER, 0, None, pid, tid, name)


def fork(pid: int, ppid: int, tid: int, ptid: int) -> perf.Fork:
    return perf.Fork(0, 7, Misc.USER, 0, None, pid, ppid, tid, ptid, 0)


def test_thread_has_its_last_recorded_name() -> None:
    threads = ThreadTable()
    for record in (comm(1, 1, "sh"), comm(1, 1, "ls")):
        threads.apply_record(record)
    assert threads.names == {1: "ls"}


def test_new_thread_has_name_of_creator() -> None:
    threads = ThreadTable()
    for record in (comm(1, 1, "sh"), fork(1, 1, 2, 1), fork(3, 1, 3, 1), comm(3, 3, "ls")):
        threads.apply_record(record)
    assert threads.names == {1: "sh", 2: "sh", 3: "ls"}


def test_name_before_fork_record_stays() -> None:
    """perf writes names from /proc before the records of the kernel."""
    threads = ThreadTable()
    for record in (comm(1, 1, "sh"), comm(3, 3, "ls"), fork(3, 1, 3, 1)):
        threads.apply_record(record)
    assert threads.names[3] == "ls"
