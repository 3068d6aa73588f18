"""What every event of a processor works on: its trace unit, which holds the state."""

from __future__ import annotations

from collections.abc import Callable

from rtit.registers import FULL, Profile
from rtit.unit import Arch, Memory, Parameters, TimeModel, TraceUnit


class Cpu:
    """The first argument of every function that is an event. Arguments: see `Processor`."""

    __slots__ = ("unit",)

    def __init__(
        self,
        *,
        profile: Profile = FULL,
        memory: Memory | None = None,
        time: TimeModel | None = None,
        parameters: Parameters | None = None,
        arch: Arch | None = None,
        fabric: Callable[[bytes], None] | None = None,
    ) -> None:
        self.unit = TraceUnit(
            profile,
            Memory() if memory is None else memory,
            time or TimeModel(),
            parameters or Parameters(),
            fabric,
        )
        self.unit.state.arch = arch or Arch.user64()

    @property
    def arch(self) -> Arch:
        """The architectural state as far as tracing sees it."""
        return self.unit.state.arch

    @property
    def ip(self) -> int:
        """Address of the next instruction, as packets would give it."""
        return self.unit.state.ip
