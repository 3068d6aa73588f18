"""Where paths meet again: the nearest place of all, by trying each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rtit.diff.paths import meeting

Path = list[int]
PATHS = st.lists(st.integers(0, 3), max_size=12)


def met(left: Path, right: Path, alike: int, ended: tuple[bool, bool]) -> tuple[int, int] | None:
    ours, theirs = (
        np.array([[each, 7, each % 2] for each in path], np.uint64).reshape(-1, 3)
        for path in (left, right)
    )
    return meeting(ours, theirs, alike, ended)


def goes_on(path: Path, at: int, alike: int, *, ended: bool) -> Path | None:
    """What follows, -1 behind the end; None if there is too little to tell."""
    rest = path[at : at + alike]
    if len(rest) < alike and not ended:
        return None
    return rest + [-1] * (alike - len(rest))


@given(PATHS, PATHS, st.integers(1, 4), st.tuples(st.booleans(), st.booleans()))
def test_the_nearest(left: Path, right: Path, alike: int, ended: tuple[bool, bool]) -> None:
    possible = [
        one + other
        for one in range(len(left) + 1)
        for other in range(len(right) + 1)
        if (rest := goes_on(left, one, alike, ended=ended[0])) is not None
        and rest == goes_on(right, other, alike, ended=ended[1])
    ]
    found = met(left, right, alike, ended)
    assert (found is None) == (not possible)
    if found is not None:
        one, other = found
        assert one + other == min(possible)
        rest = goes_on(left, one, alike, ended=ended[0])
        assert rest is not None
        assert rest == goes_on(right, other, alike, ended=ended[1])


@given(PATHS, PATHS)
def test_two_that_end_meet_there(left: Path, right: Path) -> None:
    assert met(left, right, 4, (True, True)) is not None
