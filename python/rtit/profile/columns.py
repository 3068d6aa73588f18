"""Columns as Python has numbers, and where in them some are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PART = 1 << 16
"""Rows that are made values of Python at once."""


def values(columns: Sequence[Any], order: NDArray[np.intp] | None = None) -> Iterator[Any]:
    """The rows of columns of one length as tuples, or those that `order` has, in that."""
    for at in range(0, len(columns[0] if order is None else order), _PART):
        rows = slice(at, at + _PART) if order is None else order[at : at + _PART]
        yield from zip(*(column[rows].tolist() for column in columns), strict=True)


def places(among: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.intp]:
    """Where in sorted numbers each of `wanted` is first, -1 if it is not there."""
    at = np.searchsorted(among, wanted)
    found = at < len(among)
    found[found] = among[at[found]] == wanted[found]
    return np.where(found, at, -1)
