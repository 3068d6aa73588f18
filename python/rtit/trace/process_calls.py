"""The calls of the threads of a process, which share stacks: a goroutine can continue in another
thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rtit.errors import UnsupportedError
from rtit.trace.tables import build_tables

if TYPE_CHECKING:
    from rtit import _core
    from rtit.image import Symbols
    from rtit.trace.stream import Stream
    from rtit.trace.tables.batch import Table
    from rtit.trace.tables.call_tree import CallTree
    from rtit.trace.tables.calls import Calls
    from rtit.trace.tables.selection import Selection

MAX_THREADS = 64
"""Threads of a process that share stacks: their decoders are in memory at once."""


def streams_by_process(streams: Sequence[Stream]) -> list[list[Stream]]:
    """Return the streams of threads that share stacks: those of a process, if they are not too
    many, else single streams.
    """
    groups: dict[int, list[Stream]] = {}
    for number, stream in enumerate(streams):
        groups.setdefault(stream.pid if stream.pid >= 0 else -1 - number, []).append(stream)
    found: list[list[Stream]] = []
    for group in groups.values():
        found += [group] if len(group) <= MAX_THREADS else [[each] for each in group]
    return found


def native_calls(
    streams: Sequence[Stream], symbols: Symbols, *, is_whole: bool
) -> _core.ProcessCalls:
    """Return the native calls of a process. `is_whole`: the streams begin with the threads.

    Raises UnsupportedError for a CPU whose kernel code was traced: its calls are those of all
    threads.
    """
    from rtit._core import ProcessCalls

    for stream in streams:
        if stream.needs_extraction:
            raise UnsupportedError(
                f"{stream.title}: the kernel was traced, so rtit cannot follow the calls of single "
                "threads of the CPU"
            )
    decoders = [stream.native_decoder() for stream in streams]
    max_pairs = max(stream.max_counters for stream in streams)
    return ProcessCalls(decoders, symbols.names(streams[0].tid), is_whole, max_pairs)


def call_tree_of_process(
    streams: Sequence[Stream], symbols: Symbols, *, is_whole: bool, inlines: bool = False
) -> CallTree:
    """Return the call tree of the streams of a process. `inlines`: with nodes for inlined
    functions, which DWARF names. Raises as `native_calls`.
    """
    from rtit.trace.tables.call_tree import call_tree_from_native

    max_runs = max(stream.max_counters for stream in streams) if inlines else 0
    try:
        columns = native_calls(streams, symbols, is_whole=is_whole).tree(max_runs)
    except (Exception, KeyboardInterrupt):
        _discard_decoders(streams)
        raise
    tree = call_tree_from_native(columns, [stream.tid for stream in streams])
    images = streams[0].images
    if not inlines or images is None:
        return tree
    from rtit.trace.tables.inlined_frames import add_inlined_frames

    return add_inlined_frames(tree, columns, images, streams[0].tid)


def table_of_calls(
    streams: Sequence[Stream], symbols: Symbols, where: Selection | None = None, *, is_whole: bool
) -> Table[Calls]:
    """Return the selected calls of the streams of a process, with the columns `tid` and `cpu`.

    Raises as `native_calls`.
    """
    from rtit.trace.tables.calls import Calls

    def batches() -> Iterator[Calls]:
        return _batches_of_calls(streams, symbols, is_whole=is_whole)

    row_filter = streams[0].row_filter(where)
    return build_tables.filtered_table(Calls, batches, row_filter, ("tid", "cpu"))


def _batches_of_calls(
    streams: Sequence[Stream], symbols: Symbols, *, is_whole: bool
) -> Iterator[Calls]:
    import numpy as np

    from rtit.trace.tables.calls import Calls

    tids = np.asarray([stream.tid for stream in streams], np.int32)
    cpus = np.asarray([stream.cpu for stream in streams], np.int32)
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
