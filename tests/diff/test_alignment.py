"""`find_reconvergence` against a search of all pairs of positions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rtit.diff.compare_paths import find_reconvergence

Path = list[int]
PATHS = st.lists(st.integers(0, 3), max_size=12)


def reconverge(
    left: Path, right: Path, min_match: int, ended: tuple[bool, bool]
) -> tuple[int, int] | None:
    ours, theirs = (
        np.array([[each, 7, each % 2] for each in path], np.uint64).reshape(-1, 3)
        for path in (left, right)
    )
    return find_reconvergence(ours, theirs, min_match, ended)


def window(path: Path, at: int, min_match: int, *, ended: bool) -> Path | None:
    """Return the rows from `at` on, -1 after the end; None if too few rows are known."""
    rest = path[at : at + min_match]
    if len(rest) < min_match and not ended:
        return None
    return rest + [-1] * (min_match - len(rest))


@given(PATHS, PATHS, st.integers(1, 4), st.tuples(st.booleans(), st.booleans()))
def test_reconvergence_is_the_nearest_equal_window(
    left: Path, right: Path, min_match: int, ended: tuple[bool, bool]
) -> None:
    possible = [
        (one + other, one)
        for one in range(len(left) + 1)
        for other in range(len(right) + 1)
        if (rest := window(left, one, min_match, ended=ended[0])) is not None
        and rest == window(right, other, min_match, ended=ended[1])
    ]
    found = reconverge(left, right, min_match, ended)
    assert (found is None) == (not possible)
    if found is not None:
        one, other = found
        assert (one + other, one) == min(possible)
        rest = window(left, one, min_match, ended=ended[0])
        assert rest is not None
        assert rest == window(right, other, min_match, ended=ended[1])


@given(PATHS, PATHS)
def test_two_ended_paths_reconverge_at_their_ends(left: Path, right: Path) -> None:
    assert reconverge(left, right, 4, (True, True)) is not None
