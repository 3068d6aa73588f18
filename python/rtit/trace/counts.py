"""Totals of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit._core import FlowCounts


@dataclass(frozen=True, slots=True)
class Counts:
    """What was decoded: `packets` by name, `errors` by the label of their `ErrorClass`; `errata`:
    how often the stream was read as an erratum of its processor asks, by its name; bytes of the
    stream by what is known of them; instructions; branches by kind: conditional ones, indirect
    ones with far transfers among them, returns, of these those that were compressed into a TNT bit;
    asynchronous events; core cycles, 0 without CYC packets; of these the `measured_cycles`, which
    lie between two known times, and TSC ticks that they took; TSC ticks in which nothing was traced
    (section 33.3.6).
    """

    packets: Mapping[str, int]
    errors: Mapping[str, int]
    errata: Mapping[str, int]
    exact_bytes: int
    resumed_bytes: int
    lost_bytes: int
    elsewhere_bytes: int
    instructions: int
    conditional: int
    indirect: int
    returns: int
    compressed_returns: int
    asynchronous: int
    cycles: int
    measured_cycles: int
    measured_ticks: int
    inactive_ticks: int

    @property
    def branches(self) -> int:
        """Conditional, indirect and return branches, and far transfers."""
        return self.conditional + self.indirect + self.returns

    @property
    def ipc(self) -> float | None:
        """Instructions for a core cycle, as perf has it: None without CYC packets. Cycles count
        outside of the traced code, too.
        """
        return self.instructions / self.cycles if self.cycles else None

    @property
    def frequency(self) -> float | None:
        """Core cycles in a tick of the TSC, as measured between TSCs and MTCs (section 33.8.3.4);
        None without a measure.
        """
        return self.measured_cycles / self.measured_ticks if self.measured_ticks else None

    @classmethod
    def of(cls, counts: FlowCounts) -> Counts:
        """From what the native decoder counts."""
        return cls(
            packets=counts["packets"],
            errors=counts["errors"],
            errata=counts["errata"],
            exact_bytes=counts["bytes"]["exact"],
            resumed_bytes=counts["bytes"]["resumed"],
            lost_bytes=counts["bytes"]["lost"],
            elsewhere_bytes=counts["bytes"]["elsewhere"],
            instructions=counts["instructions"],
            conditional=counts["conditional"],
            indirect=counts["indirect"],
            returns=counts["returns"],
            compressed_returns=counts["compressed_returns"],
            asynchronous=counts["asynchronous"],
            cycles=counts["cycles"],
            measured_cycles=counts["measured"][0],
            measured_ticks=counts["measured"][1],
            inactive_ticks=counts["inactive"],
        )
