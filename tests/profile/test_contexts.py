"""`CallContexts` has the same counts as a table of whole stacks."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rtit.profile.calls import NO_INDEX, CallContexts

CALLS = 4
ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, CALLS - 1), st.integers(0, 3)), max_size=12
)
"""Contexts: index of the parent (past the end: none), call, and instructions."""
NUMBERS = st.lists(st.integers(0, CALLS - 1), min_size=CALLS, max_size=CALLS)
"""Numbers of a stream's calls in the table of all streams; some may be equal."""


@given(st.lists(st.tuples(ROWS, NUMBERS), max_size=3))
def test_contexts_equal_sums_of_stacks(
    streams: list[tuple[list[tuple[int, int, int]], list[int]]],
) -> None:
    found = CallContexts()
    expected: Counter[tuple[int, ...]] = Counter()
    for rows, numbers in streams:
        stacks: list[tuple[int, ...]] = []
        kept: dict[tuple[int, int], int] = {}
        for row_parent, call, own in rows:
            parent = row_parent if row_parent < len(stacks) else NO_INDEX
            # an equal call in the same context is the same context
            if (parent, call) in kept:
                continue
            kept[parent, call] = own
            stacks.append((*(stacks[row_parent] if parent != NO_INDEX else ()), numbers[call]))
            if own:
                expected[stacks[-1]] += own
        table = np.array([(*key, own) for key, own in kept.items()], np.uint64).reshape(-1, 3)
        names = ("parent", "call", "own")
        found.add_stream_contexts(
            {name: table[:, at].copy().data for at, name in enumerate(names)}, numbers
        )
    sums = [
        (tuple(call for _, call in found.calls_up_to_root(context))[::-1], own)
        for context, own in found
    ]
    # also in the order in which contexts got their first instruction
    assert sums == list(expected.items())
