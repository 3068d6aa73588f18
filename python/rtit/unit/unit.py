"""The trace unit of one logical processor."""

from __future__ import annotations

from rtit.unit.blocks import Blocks
from rtit.unit.branches import Branches
from rtit.unit.hints import Hints
from rtit.unit.power import Power
from rtit.unit.ptwrite import PtWrite
from rtit.unit.special_events import SpecialEvents
from rtit.unit.system import SystemTracing
from rtit.unit.tsx import Transactions


class TraceUnit(
    Branches, SpecialEvents, Transactions, PtWrite, Power, Blocks, Hints, SystemTracing
):
    """Registers, output, state, and every event that it traces.

    TraceUnit(profile, memory, time, parameters, fabric=None): `memory` is what its output goes to,
    `fabric` a function that takes the bytes when FabricEn is set. After each event the packets that
    it made are whole in the output; results of conditional branches wait in the TNT buffer.
    """

    __slots__ = ()
