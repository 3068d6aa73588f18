"""Functions of the instructions of a binary, from its symbol table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rtit.image.inlined_calls import FunctionIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.profile.tables import Binary


def function_names(binary: Binary, offsets: NDArray[np.uint64]) -> list[tuple[str, str]]:
    """Return function ("" for none) and file name of each offset in the binary."""
    from rtit._core import demangle

    found = FunctionIndex(binary.symbols).find_functions(offsets).tolist()
    named = {-1: ("", binary.name)}
    for owner in {*found} - {-1}:
        named[owner] = demangle(binary.symbols.name(owner)), binary.name
    return [named[owner] for owner in found]


def instructions_by_function(binary: Binary) -> Iterator[tuple[tuple[str, str], int]]:
    """Iterate over the functions of a binary in order of address, with the instructions that ran in
    each.
    """
    owners = FunctionIndex(binary.symbols).find_functions(binary.offset)
    _, first, which = np.unique(owners, return_index=True, return_inverse=True)
    sums = np.zeros(len(first), np.uint64)
    np.add.at(sums, which, binary.count)
    order = np.argsort(first)
    named = function_names(binary, binary.offset[first[order]])
    yield from zip(named, sums[order].tolist(), strict=True)
