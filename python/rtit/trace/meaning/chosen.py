"""Which happenings a selection takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from rtit.trace.filtering import Filter
from rtit.trace.meaning.values import Happening


def chosen(found: Iterator[Happening], wanted: Filter) -> Iterator[Happening]:
    """By time, by address (`Happening.address`; what has none is at no place), and by number."""
    if wanted.is_timed or wanted.places is not None:
        found = (each for each in found if _is_wanted(each, wanted))
    if wanted.head is not None:
        return islice(found, wanted.head)
    if wanted.tail is not None:
        return iter(deque(found, maxlen=wanted.tail))
    return found


def _is_wanted(happening: Happening, wanted: Filter) -> bool:
    first, last = wanted.times
    if not first <= happening.time <= last:
        return False
    if wanted.places is None:
        return True
    address = happening.address
    return address is not None and any(
        each.start <= address < each.end and each.since <= happening.time < each.until
        for each in wanted.places
    )
