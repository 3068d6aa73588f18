"""The calls of a thread, one by one, equal what instrumented programs log of themselves."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from calls.instrumented import (
    PROGRAMS,
    RECORDINGS,
    RECORDINGS_OF_THREADS,
    coroutine_stream,
    decoded_instructions,
    recorded,
)
from calls.test_call_tree import CallPath
from rtit import Selection
from rtit.trace import Call, CallEnd, CallKind, Settings, Trace


def logged_calls(log: bytes) -> tuple[list[CallPath], Counter[int]]:
    """Return the path of each call in order, and how often each function was left by unwinding."""
    stacks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    paths: list[CallPath] = []
    unwound: Counter[int] = Counter()
    for function, frame, number in struct.iter_unpack("<QQq", log):
        stack = stacks[number]
        if not frame:
            while any(function == each for each, _ in stack):
                left, _ = stack.pop()
                if left == function:
                    break
                unwound[left] += 1
            continue
        while stack and stack[-1][1] <= frame:
            unwound[stack.pop()[0]] += 1
        stack.append((function, frame))
        paths.append(tuple(each for each, _ in stack))
    return paths, unwound


def calls_in_order(trace: Trace) -> list[Call]:
    """Return the calls in the order in which they began."""
    return sorted((call for batch in trace.calls() for call in batch), key=lambda call: call.call)


@pytest.mark.parametrize(("source", "backend"), RECORDINGS)
def test_calls_equal_the_log_of_the_program(source: str, backend: str) -> None:
    path, log = recorded(source, backend)
    expected, unwound = logged_calls(log)
    functions = {function for path in expected for function in path}
    with Trace(path) as trace:
        calls = calls_in_order(trace)
        instructions = trace.instructions().columns()
    paths: dict[int, CallPath] = {}
    found = []
    for call in calls:
        above = paths.get(call.parent, ())
        paths[call.call] = (*above, call.entry) if call.entry in functions else above
        if call.entry in functions:
            found.append(paths[call.call])
    assert found == expected

    own = [call for call in calls if call.entry in functions]
    assert all(call.end_tid == calls[0].end_tid for call in calls)
    if source == "unwinding.c":  # functions of C++ also log their exit while they are unwound
        assert Counter(call.entry for call in own if call.end == CallEnd.UNWOUND) == unwound
    ip, size, time = (instructions[each] for each in ("ip", "size", "time"))
    for call in own:
        assert ip[call.first] == call.entry
        assert time[call.first] == call.begin_time
        if call.end == CallEnd.RETURNED and call.kind == CallKind.CALL:
            assert ip[call.first - 1] == call.call_site
            assert ip[call.stop] == call.call_site + int(size[call.first - 1])


@pytest.mark.parametrize(("source", "backend"), RECORDINGS_OF_THREADS)
def test_calls_on_a_stack_of_two_threads_keep_their_callers(source: str, backend: str) -> None:
    path, log = recorded(source, backend)
    expected, _ = logged_calls(log)
    functions = {function for path in expected for function in path}
    with Trace(path) as trace:
        batches = [(batch, batch.extra_columns["tid"].tolist()) for batch in trace.calls()]
        instructions = trace.instructions().columns()
    ip, size = (
        {tid: instructions[name][instructions["tid"] == tid] for tid in set(batches[0][1])}
        for name in ("ip", "size")
    )
    paths: dict[int, CallPath] = {}
    found, changed_thread = [], 0
    rows = [row for batch, tids in batches for row in zip(batch, tids, strict=True)]
    for call, tid in sorted(rows):
        above = paths.get(call.parent, ())
        paths[call.call] = (*above, call.entry) if call.entry in functions else above
        if call.entry not in functions:
            continue
        found.append(paths[call.call])
        assert ip[tid][call.first] == call.entry
        if call.end == CallEnd.RETURNED and call.kind == CallKind.CALL:
            next_ip = call.call_site + int(size[tid][call.first - 1])
            assert ip[call.end_tid][call.stop] == next_ip
            changed_thread += call.end_tid != tid
    assert Counter(found) == Counter(expected)
    assert changed_thread > 10


@pytest.mark.parametrize("source", PROGRAMS)
def test_calls_add_up_to_the_call_tree(source: str) -> None:
    path, _ = recorded(source, "qemu")
    with Trace(path) as trace:
        calls, tree = calls_in_order(trace), trace.call_tree()
    assert sum(call.self_instructions for call in calls) == tree.self_instructions.sum()
    calls_of_rows: Counter[str] = Counter(call.function for call in calls)
    calls_of_tree: Counter[str] = Counter()
    for node in tree:
        calls_of_tree[node.function] += node.calls
    assert calls_of_rows == calls_of_tree
    for call in calls:
        assert call.self_instructions <= call.total_instructions <= call.stop - call.first


def trace_with_losses(seed: int, pieces: int) -> Trace:
    data, image = coroutine_stream()
    random = Random(seed)
    cuts = sorted(random.randrange(len(data)) for _ in range(2 * pieces))
    kept = [data[start:end] for start, end in zip([0, *cuts[1::2]], cuts[::2], strict=False)]
    return rtit.decode(b"".join([*kept, data[cuts[-1] :]]), image)


def calls_by_interpreter(trace: Trace) -> list[Call]:
    for stream in trace.streams:
        assert isinstance(stream.settings, Settings)
        stream.settings = replace(stream.settings, walk=True)
    return calls_in_order(trace)


@given(seed=st.integers(0, 2**32 - 1), pieces=st.integers(1, 8))
def test_calls_after_lost_packets_equal_those_of_the_interpreter(seed: int, pieces: int) -> None:
    calls = calls_in_order(trace_with_losses(seed, pieces))
    assert calls == calls_by_interpreter(trace_with_losses(seed, pieces))


@pytest.mark.parametrize("source", PROGRAMS)
def test_calls_and_their_times_equal_those_of_the_interpreter(source: str) -> None:
    path, _ = recorded(source, "qemu")
    with Trace(path) as trace, Trace(path) as reference:
        assert calls_in_order(trace) == calls_by_interpreter(reference)


@given(seed=st.integers(0, 2**32 - 1), pieces=st.integers(1, 8))
def test_instructions_of_calls_add_up_after_lost_packets(seed: int, pieces: int) -> None:
    trace = trace_with_losses(seed, pieces)
    own = sum(int(batch.self_instructions.sum()) for batch in trace.calls())
    assert own == decoded_instructions(trace)


def test_selection_by_function_and_time_takes_the_calls_that_begin_there() -> None:
    path, _ = recorded("unwinding.c", "qemu")
    with Trace(path) as trace:
        calls = calls_in_order(trace)
        [main] = [call for call in calls if call.function == "main"]
        [found] = trace.calls(Selection(functions=("main",))).rows()
        assert found == main
        time = rtit.trace.TimeRange(main.begin_time, main.end_time)
        within = {call.call for call in trace.calls(Selection(time=time)).rows()}
        conversion = trace.clock
    assert conversion is None or within
    if conversion is None:
        assert within == {c.call for c in calls if main.begin_time <= c.begin_time <= main.end_time}


def test_data_frame_libraries_read_calls_and_the_call_tree() -> None:
    pandas = pytest.importorskip("pandas", minversion="3", reason="pandas 3 is not installed")
    pytest.importorskip("pyarrow", reason="pandas takes Arrow's interface by pyarrow")
    path, _ = recorded("unwinding.c", "qemu")
    with Trace(path) as trace:
        calls = pandas.DataFrame.from_arrow(trace.calls())
        tree = pandas.DataFrame.from_arrow(trace.call_tree())
        assert calls["function"].tolist() == [call.function for call in trace.calls().rows()]
        assert set(tree["kind"]) >= {"root", "call"}
        assert tree["function"].tolist() == trace.call_tree().function_names
        assert calls["self_instructions"].sum() == tree["self_instructions"].sum()


def test_columns_have_the_names_of_functions() -> None:
    path, _ = recorded("unwinding.c", "qemu")
    with Trace(path) as trace:
        names = [call.function for call in trace.calls().rows()]
        columns = trace.calls().columns()
        assert columns["function"].tolist() == names
        assert set(columns) >= {"tid", "cpu", "call", "parent"}
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        table = arrow.table(trace.calls())
    assert table["function"].to_pylist() == names
    assert table["parent"].to_pylist() == columns["parent"].tolist()
