"""The trace unit of one logical processor."""

from __future__ import annotations

from rtit.unit.branches import Branches
from rtit.unit.transfers import Transfers


class TraceUnit(Branches, Transfers):
    """Registers, output, state, and every event that it traces.

    TraceUnit(profile, memory, time, parameters, fabric=None): `memory` is what its output goes to,
    `fabric` a function that takes the bytes when FabricEn is set. After each event the packets that
    it made are whole in the output; results of conditional branches wait in the TNT buffer.
    """

    __slots__ = ()
