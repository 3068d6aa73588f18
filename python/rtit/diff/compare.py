"""Two threads, along their paths: where they part, for the first time and again.

Both are decoded in step, so that memory is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.diff.alignment import WIDTHS, meeting
from rtit.diff.path import KEPT

if TYPE_CHECKING:
    from rtit.diff.path import Path, Run

_MOST_PLACES = 10_000
_MOST_STEPS = 1 << 23
"""So many steps are looked at in all to find where paths meet again."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two paths part, each in its own addresses. `before`: the last runs that are equal, the
    latest last; `after`: the runs that follow, none at an end, of which the first `shared`
    instructions are still equal.
    """

    before: tuple[list[Run], list[Run]]
    after: tuple[list[Run], list[Run]]
    shared: int


class Place(NamedTuple):
    """Where paths part, each in its own addresses: the last IP that is equal, in the left one's,
    and the first of each that is not, None at an end. Of the side `behind` it is what follows this
    IP in memory.
    """

    last: int | None
    left: int | None
    right: int | None
    behind: int | None = None


@dataclass(slots=True)
class Later:
    """What follows where paths parted: how many instructions are equal again, how many are in one
    `alone`, and how often they parted (`partings`), also at each place, with the times (TSC) of the
    first. `whole`: this goes up to the end; else they do not meet within some ten thousands of
    steps, or part too often.
    """

    instructions: int = 0
    alone: tuple[int, int] = (0, 0)
    places: dict[Place, int] = field(default_factory=dict)
    times: dict[Place, tuple[int, int]] = field(default_factory=dict)
    whole: bool = True
    partings: int = 0

    def add(self, place: Place, times: tuple[int, int]) -> None:
        """They part once more."""
        self.times.setdefault(place, times)
        self.places[place] = self.places.get(place, 0) + 1
        self.partings += 1


def compare(
    left: Path, right: Path, steps: int, alike: int
) -> tuple[int, Parting | None, Later | None]:
    """How many instructions are equal, where the paths part, if they do, and what follows: they
    meet again where the next `alike` steps are the same.
    """
    equal = 0
    before: tuple[deque[Run], deque[Run]] = deque(maxlen=KEPT), deque(maxlen=KEPT)
    parting = later = None
    looked = 0
    while True:
        count = min(left.ready(), right.ready())
        same = _same(left.key(count), right.key(count))
        if same:
            instructions, runs = left.take(same)
            before[0].extend(runs)
            before[1].extend(right.take(same)[1])
            if later is None:
                equal += instructions
            else:
                later.instructions += instructions
        if same == count and count:
            continue
        after = left.following(steps), right.following(steps)
        if not any(after):
            return equal, parting, later
        shared = _shared(left, right)
        if later is None:
            parting = Parting((list(before[0]), list(before[1])), after, shared)
            equal += shared
            later = Later()
        else:
            later.instructions += shared
        later.add(*_place(before[0], (left.following(2), right.following(2)), shared))
        gap, more = _gap(left, right, alike)
        looked += more
        later.whole = gap is not None
        if gap is not None:
            passed = [path.take(rows)[0] for path, rows in zip((left, right), gap, strict=True)]
            less = shared if all(gap) else 0
            later.instructions -= shared - less
            alone = zip(later.alone, passed, strict=True)
            later.alone = tuple(sum(pair) - less for pair in alone)  # type: ignore[assignment]
            later.whole = looked < _MOST_STEPS and later.partings < _MOST_PLACES
        if not later.whole:
            return equal, parting, later


def _place(
    before: Sequence[Run], after: tuple[list[Run], list[Run]], shared: int
) -> tuple[Place, tuple[int, int]]:
    """The place where they part, and the times of the two there."""
    one, other = (runs[0].time if runs else 0 for runs in after)
    if not shared:
        left, right = (runs[0].start if runs else None for runs in after)
        return Place(before[-1].last if before else None, left, right), (one, other)
    # They begin at one place, and one goes on behind where the other leaves.
    longer = int(after[0][0].instructions < after[1][0].instructions)
    short = after[1 - longer]
    lasts = [runs[0].start + short[0].last - short[0].start for runs in after]
    went: list[int | None] = [short[1].start if len(short) > 1 else None] * 2
    went[longer] = lasts[longer]
    return Place(lasts[0], went[0], went[1], longer), (one, other)


def _gap(left: Path, right: Path, alike: int) -> tuple[tuple[int, int] | None, int]:
    """How many steps of each are left out until they go on alike, None if they do not soon; and how
    many steps were looked at.
    """
    looked = 0
    for width in WIDTHS:
        counts = [path.ahead(width) for path in (left, right)]
        looked += sum(counts)
        rows = [path.rows(count) for path, count in zip((left, right), counts, strict=True)]
        ended = counts[0] < width, counts[1] < width
        gap = meeting(rows[0], rows[1], alike, ended)
        if gap is not None:
            return gap, looked
        if all(ended):
            break
    return None, looked


def _same(left: tuple[Any, ...], right: tuple[Any, ...]) -> int:
    """How many rows are equal, from the first on."""
    different = np.zeros(len(left[0]), bool)
    for one, other in zip(left, right, strict=True):
        different |= one != other
    return int(different.argmax()) if different.any() else len(different)


def _shared(left: Path, right: Path) -> int:
    """Instructions that the next runs have in common: they may begin at one place."""
    if not left.ready() or not right.ready():
        return 0
    (ours, theirs) = (tuple(int(column[0]) for column in path.key(1)) for path in (left, right))
    return min(ours[2], theirs[2]) if ours[:2] == theirs[:2] else 0
