"""The calls of the threads of a process, which share stacks: a goroutine can continue in another
thread.

If the kernel was traced, a stream has all tasks of a CPU, each with a stack of its own that
continues on other CPUs. The streams of all CPUs are then followed together. Tasks are threads here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rtit.errors import UnsupportedError
from rtit.sideband.scheduling import UNKNOWN
from rtit.trace.tables import build_tables

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rtit import _core
    from rtit.image import Symbols
    from rtit.trace.stream import Stream
    from rtit.trace.tables.batch import Table
    from rtit.trace.tables.call_tree import CallTree
    from rtit.trace.tables.calls import Calls
    from rtit.trace.tables.selection import Selection
    from rtit.trace.threads.schedule import ThreadId

MAX_THREADS = 64
"""Threads of a process that share stacks: their decoders are in memory at once."""


def streams_by_process(streams: Sequence[Stream]) -> list[list[Stream]]:
    """Group the streams whose threads can share stacks: the streams of a process, or those of all
    CPUs whose kernel was traced. A group that would be too large is split into single streams.
    """
    groups: dict[int | None, list[Stream]] = {}
    for number, stream in enumerate(streams):
        pid = stream.pid if stream.pid >= 0 else -1 - number
        groups.setdefault(None if stream.has_kernel_tasks else pid, []).append(stream)
    found: list[list[Stream]] = []
    for group in groups.values():
        found += [group] if len(group) <= MAX_THREADS else [[each] for each in group]
    return found


def native_calls(
    streams: Sequence[Stream], symbols: Symbols, *, is_whole: bool
) -> _core.ProcessCalls:
    """Return the native calls of a process. `is_whole`: the streams begin with the threads.

    Raises UnsupportedError for a CPU whose kernel code was traced, if `__switch_to` is not known:
    the tasks cannot be told apart.
    """
    from rtit._core import ProcessCalls

    for stream in streams:
        if stream.needs_extraction:
            raise UnsupportedError(
                f"{stream.title}: the kernel was traced, but no file has the address of "
                "__switch_to, so that rtit cannot follow the calls of single threads of the CPU"
            )
    decoders = [stream.native_decoder() for stream in streams]
    max_pairs = max(stream.max_counters for stream in streams)
    tasks = _native_tasks(streams, symbols) if streams[0].has_kernel_tasks else None
    return ProcessCalls(decoders, symbols.names(streams[0].tid), is_whole, max_pairs, tasks)


def threads_of_calls(streams: Sequence[Stream]) -> list[ThreadId]:
    """Return (pid, tid) of the threads that run in the streams of a group.

    The idle threads of several CPUs have the same ids, and an element each.
    """
    if not streams[0].has_kernel_tasks:
        return [(stream.pid, stream.tid) for stream in streams]
    found: dict[_Task, None] = {}
    for stream in streams:
        found |= dict.fromkeys(_tasks_of_intervals(stream))
    return [(pid, tid) for pid, tid, _ in found]


_Task = tuple[int, int, int]
"""Pid and tid, and the CPU of an idle thread; -1 for others."""


def _tasks_of_intervals(stream: Stream) -> list[_Task]:
    """Return the task of each scheduling interval of a CPU."""
    assert stream.thread_scope is not None
    intervals = stream.thread_scope.schedule.intervals
    return [
        (pid, tid, -1 if tid else stream.cpu)
        for pid, tid in zip(intervals.pid, intervals.tid, strict=True)
    ]


def _native_tasks(streams: Sequence[Stream], symbols: Symbols) -> _core.ProcessorTasks:
    """Return the tasks of some CPUs for native code, in the order of `threads_of_calls`."""
    import numpy as np

    numbers: dict[_Task, int] = {}
    schedules: list[tuple[Buffer, Buffer]] = []
    switch_address = 0
    for stream in streams:
        assert stream.thread_scope is not None
        schedule = stream.thread_scope.schedule
        switch_address = schedule.switch_address or 0
        tasks = _tasks_of_intervals(stream)
        of_intervals = (numbers.setdefault(task, len(numbers)) for task in tasks)
        schedules.append((schedule.intervals.start, np.fromiter(of_intervals, np.uint32).data))
    names, processes = symbols.names_with_kernel([pid for pid, *_ in numbers])
    return switch_address, schedules, np.asarray(processes, np.uint32).data, names


def call_tree_of_process(
    streams: Sequence[Stream], symbols: Symbols, *, is_whole: bool, inlines: bool = False
) -> CallTree:
    """Return the call tree of the streams of a process. `inlines`: with nodes for inlined
    functions, which DWARF names. Raises as `native_calls`.
    """
    from rtit.trace.tables.call_tree import call_tree_from_native

    if inlines and streams[0].has_kernel_tasks:
        raise UnsupportedError("inlined functions of a recording of the kernel are not known")
    max_runs = max(stream.max_counters for stream in streams) if inlines else 0
    try:
        columns = native_calls(streams, symbols, is_whole=is_whole).tree(max_runs)
    except (Exception, KeyboardInterrupt):
        _discard_decoders(streams)
        raise
    # Of a CPU, what ran first may be of an unknown thread.
    tids = [*(tid for _, tid in threads_of_calls(streams)), UNKNOWN]
    tree = call_tree_from_native(columns, tids)
    images = streams[0].images
    if not inlines or images is None:
        return tree
    from rtit.trace.tables.inlined_frames import add_inlined_frames

    return add_inlined_frames(tree, columns, images, streams[0].tid)


def table_of_calls(
    streams: Sequence[Stream],
    symbols: Symbols,
    where: Selection | None = None,
    *,
    is_whole: bool,
    tids: Collection[int] = (),
) -> Table[Calls]:
    """Return the selected calls of the streams of a process, with the columns `tid` and `cpu`.

    `tids`: the threads that `where` selects. Raises as `native_calls`.
    """
    import numpy as np

    from rtit.trace.tables.calls import Calls

    has_tasks = streams[0].has_kernel_tasks

    def batches() -> Iterator[Calls]:
        for batch in _batches_of_calls(streams, symbols, is_whole=is_whole):
            if has_tasks and where is not None:
                yield batch.select_rows(np.isin(batch.extra_columns["tid"], [*tids]))
            else:
                yield batch

    if has_tasks and where is not None:
        row_filter = streams[0].row_filter(replace(where, tids=(), pids=(), cpus=(), comms=()))
    else:
        row_filter = streams[0].row_filter(where)
    return build_tables.filtered_table(Calls, batches, row_filter, ("tid", "cpu"))


def _batches_of_calls(
    streams: Sequence[Stream], symbols: Symbols, *, is_whole: bool
) -> Iterator[Calls]:
    import numpy as np

    from rtit.trace.tables.calls import Calls

    tids = np.asarray([*(tid for _, tid in threads_of_calls(streams)), UNKNOWN], np.int32)
    cpus = np.asarray([stream.cpu for stream in streams], np.int32)
    if streams[0].has_kernel_tasks:
        # A task can run on all of them.
        cpus = np.full(len(tids), cpus[0] if len(cpus) == 1 else -1, np.int32)
    try:
        calls = native_calls(streams, symbols, is_whole=is_whole)
        while (columns := calls.rows(build_tables.BATCH_ROWS)) is not None:
            yield Calls.from_native(columns, tids, cpus)
    except (Exception, KeyboardInterrupt):
        _discard_decoders(streams)
        raise


def _discard_decoders(streams: Sequence[Stream]) -> None:
    """After an error the decoders have no ledger of the whole stream."""
    for stream in streams:
        stream.discard_decoder()
