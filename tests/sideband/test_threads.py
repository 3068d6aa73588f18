"""ThreadTable: names over time, and who was first on a CPU."""

from __future__ import annotations

from rtit.perfdata import records as perf
from rtit.perfdata.records import Misc
from rtit.sideband import ThreadTable


def comm(pid: int, tid: int, name: str) -> perf.Comm:
    return perf.Comm(0, 3, Misc.USER, 0, None, pid, tid, name)


def fork(pid: int, ppid: int, tid: int, ptid: int) -> perf.Fork:
    return perf.Fork(0, 7, Misc.USER, 0, None, pid, ppid, tid, ptid, 0)


def test_the_last_name_counts() -> None:
    threads = ThreadTable()
    for record in (comm(1, 1, "sh"), comm(1, 1, "ls")):
        threads.apply(record)
    assert threads.names == {1: "ls"}


def test_a_thread_has_the_name_of_its_maker_until_it_has_its_own() -> None:
    threads = ThreadTable()
    for record in (comm(1, 1, "sh"), fork(1, 1, 2, 1), fork(3, 1, 3, 1), comm(3, 3, "ls")):
        threads.apply(record)
    assert threads.names == {1: "sh", 2: "sh", 3: "ls"}


def test_a_name_given_before_the_fork_is_seen_stays() -> None:
    """perf writes what it finds in /proc before the records of the kernel."""
    threads = ThreadTable()
    for record in (comm(1, 1, "sh"), comm(3, 3, "ls"), fork(3, 1, 3, 1)):
        threads.apply(record)
    assert threads.names[3] == "ls"
