"""Where two paths that have parted meet again: the nearest place from which both go on alike."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTHS = (1 << 6, 1 << 10, 1 << 14, 1 << 17)
"""So many steps of each are looked at; the next only where they do not meet within the last."""
_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)
_END = np.uint64((1 << 64) - 1)


def meeting(left: Any, right: Any, alike: int, ended: tuple[bool, bool]) -> tuple[int, int] | None:
    """How many rows of each to pass over, as few as can be, so that the next `alike` of both are
    equal. `left` and `right` are columns of the same width; `ended`: whether there are no more
    rows, of which all are passed over if need be. None if they do not meet.
    """
    rows = np.concatenate([left, right])
    _, numbers = np.unique(rows, axis=0, return_inverse=True)
    numbers = numbers.reshape(-1).astype(np.uint64)
    grams = [
        _grams(part, alike, end)
        for part, end in zip((numbers[: len(left)], numbers[len(left) :]), ended, strict=True)
    ]
    (ours, at), (theirs, there) = (np.unique(each, return_index=True) for each in grams)
    _, one, other = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    if not len(one):
        return None
    nearest = int(np.argmin(at[one] + there[other]))
    return int(at[one[nearest]]), int(there[other[nearest]])


def _grams(numbers: Any, size: int, ended: bool) -> Any:
    """A hash of each row with those that follow it; behind the end there is always the same."""
    if ended:
        numbers = np.append(numbers, np.full(size, _END))
    count = max(0, len(numbers) - size + 1)
    found = np.zeros(count, np.uint64)
    for place in range(size):
        found = (found + numbers[place : place + count] + np.uint64(1)) * _FACTOR
        found ^= found >> np.uint64(29)
    return found
