"""Processes: who made whom, numbers that are used again, names, threads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rtit.perfdata import Ending
from rtit.perfdata import records as perf
from rtit.sideband import Ended, Process
from rtit.sideband.processes import Processes


def fork(pid: int, ppid: int, tid: int, ptid: int) -> perf.Fork:
    return perf.Fork(0, 7, 0, 0, None, pid, ppid, tid, ptid, 0)


def comm(pid: int, tid: int, name: str) -> perf.Comm:
    return perf.Comm(0, 3, 0, 0, None, pid, tid, name)


def found(*records: perf.Record, endings: tuple[Ended, ...] = ()) -> list[Process]:
    processes = Processes()
    for time, record in enumerate(records):
        processes.apply(time, record)
    return processes.all(endings)


def test_a_child_has_its_parent_and_its_name() -> None:
    shell, true = found(comm(5, 5, "sh"), fork(6, 5, 6, 5))
    assert (shell.pid, shell.parent, shell.name) == (5, None, "sh")
    assert (true.pid, true.parent, true.name, true.since) == (6, shell, "sh", 1)
    _, named = found(comm(5, 5, "sh"), fork(6, 5, 6, 5), comm(6, 6, "true"))
    assert named.name == "true"


def test_thread_adds_no_process_and_no_name() -> None:
    [one] = found(comm(5, 5, "a"), fork(5, 5, 7, 5), comm(5, 7, "worker"), fork(5, 5, 8, 7))
    assert (one.threads, one.name) == ({5, 7, 8}, "a")


def test_reused_pid_is_a_new_process_with_its_own_end() -> None:
    first, last = Ended(6, 6, 2, Ending(0x100)), Ended(6, 6, 5, Ending(0x200))
    shell, old, new = found(
        comm(5, 5, "sh"), fork(6, 5, 6, 5), comm(5, 5, "sh"), fork(6, 5, 6, 5),
        endings=(first, last),
    )  # fmt: skip
    assert (old.pid, old.ended, new.pid, new.ended) == (6, first, 6, last)
    assert (old.parent, new.parent, shell.ended) == (shell, shell, None)


def test_process_is_traced_after_itrace_start() -> None:
    processes = found(comm(5, 5, "a"), perf.ItraceStart(0, 12, 0, 0, None, 6, 6))
    assert [(each.pid, each.traced) for each in processes] == [(5, False), (6, True)]


numbers = st.integers(-1, 4)


@given(st.lists(st.builds(fork, numbers, numbers, numbers, numbers), max_size=30))
def test_parents_precede_children_in_any_order_of_records(records: list[perf.Fork]) -> None:
    seen: set[int] = set()
    for process in found(*records):
        assert process.parent is None or id(process.parent) in seen
        seen.add(id(process))
