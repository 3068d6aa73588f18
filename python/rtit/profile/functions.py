"""The functions of a binary's code, as people read their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rtit.profile.lines import Owners

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.profile.table import Binary


def functions(binary: Binary, offsets: NDArray[np.uint64]) -> list[tuple[str, str]]:
    """Of each offset in the binary's file the name, "" for none, and the file's name."""
    from rtit._core import demangle

    found = Owners(binary.symbols).of(offsets).tolist()
    named = {-1: ("", binary.name)}
    for owner in {*found} - {-1}:
        named[owner] = demangle(binary.symbols.name(owner)), binary.name
    return [named[owner] for owner in found]


def counted(binary: Binary) -> Iterator[tuple[tuple[str, str], int]]:
    """The functions of what ran in the binary, in its order, with the instructions of each."""
    owners = Owners(binary.symbols).of(binary.offset)
    _, first, which = np.unique(owners, return_index=True, return_inverse=True)
    sums = np.zeros(len(first), np.uint64)
    np.add.at(sums, which, binary.count)
    order = np.argsort(first)
    named = functions(binary, binary.offset[first[order]])
    yield from zip(named, sums[order].tolist(), strict=True)
