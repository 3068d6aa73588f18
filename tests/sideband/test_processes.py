"""ProcessTable: parents, reused pids, names, threads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rtit.perfdata import ExitStatus
from rtit.perfdata import records as perf
from rtit.sideband import Process, ProcessExit
from rtit.sideband.processes import ProcessTable


def fork(pid: int, ppid: int, tid: int, ptid: int) -> perf.Fork:
    return perf.Fork(0, 7, 0, 0, None, pid, ppid, tid, ptid, 0)


def comm(pid: int, tid: int, name: str) -> perf.Comm:
    return perf.Comm(0, 3, 0, 0, None, pid, tid, name)


def read_processes(*records: perf.Record, endings: tuple[ProcessExit, ...] = ()) -> list[Process]:
    processes = ProcessTable()
    for time, record in enumerate(records):
        processes.apply_record(time, record)
    return processes.with_exits(endings)


def test_child_has_parent_and_its_name() -> None:
    shell, true = read_processes(comm(5, 5, "sh"), fork(6, 5, 6, 5))
    assert (shell.pid, shell.parent, shell.name) == (5, None, "sh")
    assert (true.pid, true.parent, true.name, true.start) == (6, shell, "sh", 1)
    _, named = read_processes(comm(5, 5, "sh"), fork(6, 5, 6, 5), comm(6, 6, "true"))
    assert named.name == "true"


def test_threads_do_not_rename_process() -> None:
    [one] = read_processes(
        comm(5, 5, "a"), fork(5, 5, 7, 5), comm(5, 7, "worker"), fork(5, 5, 8, 7)
    )
    assert (one.threads, one.name) == ({5, 7, 8}, "a")


def test_reused_pid_is_separate_process() -> None:
    first, last = ProcessExit(6, 6, 2, ExitStatus(0x100)), ProcessExit(6, 6, 5, ExitStatus(0x200))
    shell, old, new = read_processes(
        comm(5, 5, "sh"), fork(6, 5, 6, 5), comm(5, 5, "sh"), fork(6, 5, 6, 5),
        endings=(first, last),
    )  # fmt: skip
    assert (old.pid, old.exit, new.pid, new.exit) == (6, first, 6, last)
    assert (old.parent, new.parent, shell.exit) == (shell, shell, None)


def test_itrace_start_marks_process_traced() -> None:
    processes = read_processes(comm(5, 5, "a"), perf.ItraceStart(0, 12, 0, 0, None, 6, 6))
    assert [(each.pid, each.is_traced) for each in processes] == [(5, False), (6, True)]


numbers = st.integers(-1, 4)


@given(st.lists(st.builds(fork, numbers, numbers, numbers, numbers), max_size=30))
def test_parents_precede_children(records: list[perf.Fork]) -> None:
    seen: set[int] = set()
    for process in read_processes(*records):
        assert process.parent is None or id(process.parent) in seen
        seen.add(id(process))
