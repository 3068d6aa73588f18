"""The call tree equals what instrumented programs log of their own entries and exits.

The programs log the frame address of each entry. A function is on the stack until it exits, or
until another function is entered at its frame address or above: then it was left by an exception
or a longjmp.
"""

from __future__ import annotations

import resource
import struct
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from calls.instrumented import (
    PROGRAMS,
    RECORDINGS,
    RECORDINGS_OF_THREADS,
    RECORDINGS_OF_UNWINDING,
    coroutine_stream,
    decoded_instructions,
    record,
    recorded,
)
from programs.build import compiled
from rtit.trace import CallKind, Trace
from rtit.views.call_tree import merge_functions
from support.recordings import require_backend

CallPath = tuple[int, ...]
"""Start addresses of functions, the outermost first."""


def logged_paths(log: bytes) -> Counter[CallPath]:
    """Return how often each path was entered, according to the program's own log."""
    stacks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    paths: Counter[CallPath] = Counter()
    for function, frame, number in struct.iter_unpack("<QQq", log):
        stack = stacks[number]
        if not frame:
            if function in (each for each, _ in stack):
                while stack.pop()[0] != function:
                    pass
            continue
        while stack and stack[-1][1] <= frame:
            stack.pop()
        stack.append((function, frame))
        paths[tuple(each for each, _ in stack)] += 1
    return paths


def decoded_paths(trace: Trace, functions: set[int]) -> Counter[CallPath]:
    """Return how often each path was entered, according to the call tree.

    Paths have these functions alone.
    """
    paths: list[CallPath] = []
    found: Counter[CallPath] = Counter()
    for node in trace.call_tree():
        above = paths[node.parent] if node.parent >= 0 else ()
        path = (*above, node.entry) if node.entry in functions else above
        paths.append(path)
        if node.entry in functions:
            found[path] += node.calls
    return found


@pytest.mark.parametrize(
    ("source", "backend"), [*RECORDINGS, *RECORDINGS_OF_THREADS, *RECORDINGS_OF_UNWINDING]
)
def test_paths_of_calls_equal_the_log_of_the_program(source: str, backend: str) -> None:
    path, log = recorded(source, backend)
    expected = logged_paths(log)
    assert len(expected) > 20
    with Trace(path) as trace:
        found = decoded_paths(trace, {function for path in expected for function in path})
    assert found == expected


@pytest.mark.parametrize("inlines", [False, True])
@pytest.mark.parametrize("source", PROGRAMS)
def test_calls_in_the_tree_add_up_to_all_instructions(source: str, inlines: bool) -> None:
    path, _ = recorded(source, "qemu")
    with Trace(path) as trace:
        tree = trace.call_tree(inlines=inlines)
        assert tree.self_instructions.sum() == decoded_instructions(trace)
        is_root, is_signal = tree.kind == CallKind.ROOT, tree.kind == CallKind.SIGNAL
        total = int(tree.total_instructions[is_root | is_signal].sum())
        assert total == decoded_instructions(trace)
        assert (tree.parent < np.arange(len(tree))).all()
        assert ((tree.parent < 0) == is_root).all()


@pytest.mark.parametrize("inlines", [False, True])
@pytest.mark.parametrize("source", PROGRAMS)
def test_total_of_a_function_counts_each_instruction_once(source: str, inlines: bool) -> None:
    path, _ = recorded(source, "qemu")
    with Trace(path) as trace:
        tree = trace.call_tree(inlines=inlines)
    nodes = list(tree)
    expected: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        # The functions of the stack, down to the signal handler if there is one.
        functions, at = {(node.function, node.module)}, node
        while at.kind != CallKind.SIGNAL and at.parent >= 0:
            at = nodes[at.parent]
            functions.add((at.function, at.module))
        for function in functions:
            expected[function] += node.self_instructions
    totals = tree.by_function()
    assert Counter({each: row.total_instructions for each, row in totals.items()}) == expected
    assert sum(row.self_instructions for row in totals.values()) == tree.self_instructions.sum()
    assert sum(row.calls for row in totals.values()) == tree.calls.sum()


@given(seed=st.integers(0, 2**32 - 1), pieces=st.integers(1, 8))
def test_instructions_add_up_after_lost_packets(seed: int, pieces: int) -> None:
    data, image = coroutine_stream()
    random = Random(seed)
    cuts = sorted(random.randrange(len(data)) for _ in range(2 * pieces))
    kept = [data[start:end] for start, end in zip([0, *cuts[1::2]], cuts[::2], strict=False)]
    damaged = b"".join([*kept, data[cuts[-1] :]])
    trace = rtit.decode(damaged, image)
    tree = trace.call_tree()
    assert tree.self_instructions.sum() == decoded_instructions(trace)
    assert tree.total_instructions[tree.parent < 0].sum() <= tree.self_instructions.sum()


def test_recursion_of_a_million_levels_takes_bounded_memory(tmp_path: Path) -> None:
    require_backend("qemu")
    source = tmp_path / "deep.c"
    source.write_text(
        "__attribute__((noinline)) int down(int n) { return n ? down(n - 1) + 1 : 0; }\n"
        "int main(void) { return down(1000000) != 1000000; }\n"
    )
    flags = ["-O1", "-fno-optimize-sibling-calls", "-Wl,-z,stack-size=268435456", "-static"]
    program = compiled("calls-deep", [str(source)], language="c", flags=flags, directory=tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (256 << 20, limits[1]))
    try:
        record(program, "qemu", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, limits)
    with Trace(tmp_path / "data") as trace:
        tree = trace.call_tree()
    names = np.asarray(tree.functions)[tree.function]
    assert int(tree.calls[names == "down"].sum()) == 1_000_001
    assert tree.statistics.calls_without_node == 0


def test_callbacks_from_code_outside_of_the_filters_are_calls_by_the_traced_function(
    tmp_path: Path,
) -> None:
    source = tmp_path / "sort.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        "static int compared;\n"
        "int compare(const void *a, const void *b)\n"
        "{ compared++; return *(const int *)a - *(const int *)b; }\n"
        "__attribute__((noinline)) void sort(int *n) { qsort(n, 8, sizeof *n, compare); *n = 9; }\n"
        "int main(void) {\n"
        "    int n[8] = {3, 1, 4, 1, 5, 9, 2, 6};\n"
        "    for (int i = 0; i < 3; i++) sort(n);\n"
        '    printf("%d", compared);\n'
        "}\n"
    )
    program = compiled("calls-sort", [str(source)], language="c", flags=["-O1"], directory=tmp_path)
    filters = ",".join(f"filter {name} @ {program}" for name in ("main", "sort", "compare"))
    compared = int(record(program, "ptrace", tmp_path, "--filter", filters))
    with Trace(tmp_path / "data") as trace:
        root = merge_functions(trace.call_tree())
    [main] = root.children.values()
    [sort] = main.children.values()
    [compare] = sort.children.values()
    assert (main.calls, sort.calls, compare.calls) == (1, 3, compared)
    assert not compare.children
