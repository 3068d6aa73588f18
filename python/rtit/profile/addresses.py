"""Addresses and edges as the formats of compilers want them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rtit.trace import End

if TYPE_CHECKING:
    from rtit.profile.table import Binary, Edges

NEAR = (
    End.CONDITIONAL,
    End.JUMP,
    End.CALL,
    End.INDIRECT_JUMP,
    End.INDIRECT_CALL,
    End.RETURN,
)
"""How rows end with a near branch that was taken."""
_DYNAMIC = 3


def taken(edges: Edges) -> Edges:
    """Near branches that were taken."""
    return edges.where(np.isin(edges.kind, NEAR))


def load_address(binary: Binary) -> int:
    """The address of a position-independent file's first segment, 0 of any other."""
    elf = binary.symbols.elf
    if elf.kind != _DYNAMIC or not elf.segments:
        return 0
    return min(address for _offset, address, *_ in elf.segments) & ~0xFFF
