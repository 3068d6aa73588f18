"""The functions of a binary's code, as people read their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.profile.lines import Owners

if TYPE_CHECKING:
    import numpy as np
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
