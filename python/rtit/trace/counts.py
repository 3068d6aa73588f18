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
    asynchronous events; core cycles, 0 without CYC packets.
    """

    packets: Mapping[str, int]
    errors: Mapping[str, int]
    errata: Mapping[str, int]
    exact_bytes: int
    resumed_bytes: int
    lost_bytes: int
    instructions: int
    conditional: int
    indirect: int
    returns: int
    compressed_returns: int
    asynchronous: int
    cycles: int

    @property
    def branches(self) -> int:
        """Conditional, indirect and return branches, and far transfers."""
        return self.conditional + self.indirect + self.returns

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
            instructions=counts["instructions"],
            conditional=counts["conditional"],
            indirect=counts["indirect"],
            returns=counts["returns"],
            compressed_returns=counts["compressed_returns"],
            asynchronous=counts["asynchronous"],
            cycles=counts["cycles"],
        )
