"""The value that every event of a processor works on: its trace unit, which holds the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rtit.registers import FULL, Profile
from rtit.unit.arch_state import ArchState
from rtit.unit.illegal_events import require
from rtit.unit.memory import Memory
from rtit.unit.parameters.table import Parameters
from rtit.unit.snapshots import Snapshot
from rtit.unit.time_model import TimeModel
from rtit.unit.trace_unit import TraceUnit


class Cpu:
    """The first argument of every function that is an event. Arguments: see `Processor`."""

    __slots__ = ("checked", "unit")

    def __init__(
        self,
        *,
        profile: Profile = FULL,
        memory: Memory | None = None,
        time: TimeModel | None = None,
        parameters: Parameters | None = None,
        arch: ArchState | None = None,
        fabric: Callable[[bytes], None] | None = None,
        checked: bool = True,
    ) -> None:
        self.checked = checked
        clock = TimeModel.from_profile(profile) if time is None else time
        self.unit = TraceUnit(
            _with_clock_leaf(profile, clock),
            Memory() if memory is None else memory,
            clock,
            parameters or Parameters(),
            fabric,
        )
        self.unit.state.arch = arch or ArchState.user64()

    @property
    def arch(self) -> ArchState:
        """The architectural state as far as tracing sees it.

        It can be set while TraceEn is 0, to begin elsewhere; IllegalEvent while it is 1, for then
        events change it. To go back to an earlier point of a run, `restore` its `snapshot`.
        """
        return self.unit.state.arch

    @arch.setter
    def arch(self, arch: ArchState) -> None:
        tracing = self.unit.registers.trace_en
        require(not tracing, "the state is set while TraceEn is 1: then events change it")
        self.unit.state.arch = arch

    @property
    def ip(self) -> int:
        """Address of the next instruction, as packets would give it."""
        return self.unit.state.ip

    def snapshot(self) -> Snapshot:
        """Processor and trace unit by value, between two events. Memory is no part of it."""
        return self.unit.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Go on as the processor that the snapshot was taken from, also while TraceEn is 1."""
        self.unit.restore(snapshot)


def _with_clock_leaf(profile: Profile, time: TimeModel) -> Profile:
    """`profile` with the clock of `time` in CPUID.15H, if it has that leaf."""
    ratio = time.tsc_numerator, time.tsc_denominator
    if (profile.tsc_numerator, profile.tsc_denominator) in (ratio, (0, 0)):
        return profile
    numerator, denominator = ratio
    return replace(
        profile,
        tsc_numerator=numerator,
        tsc_denominator=denominator,
        crystal_hz=time.crystal_hz,
    )
