"""The perf clock and the TSC, converted into each other.

The kernel publishes three numbers per machine (`time_shift`, `time_mult`, `time_zero` of
perf_event_mmap_page); perf copies them into AUXTRACE_INFO and TIME_CONV. Sideband records are in
nanoseconds of that clock, packets in TSC ticks.
"""

from __future__ import annotations

from dataclasses import dataclass

_WRAP = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TimeConversion:
    """ns = zero + (tsc * mult >> shift), in arithmetic modulo 2**64.

    `shift` is 0..63, `mult` 1..2**32-1, `zero` 0..2**64-1. Raises ValueError on anything else: a
    `mult` of 0 could not be inverted.
    """

    shift: int
    mult: int
    zero: int

    def __post_init__(self) -> None:
        if not 0 <= self.shift < 64:
            raise ValueError(f"time_shift is {self.shift}, not 0..63")
        if not 0 < self.mult <= 0xFFFF_FFFF:
            raise ValueError(f"time_mult is {self.mult}, not 1..2**32-1")
        if not 0 <= self.zero <= _WRAP:
            raise ValueError(f"time_zero is {self.zero}, not 0..2**64-1")

    def to_nanoseconds(self, tsc: int) -> int:
        """The perf clock, in ns, when the TSC was `tsc` (ticks, 0..2**64-1)."""
        return (self.zero + (tsc * self.mult >> self.shift)) & _WRAP

    def to_tsc(self, nanoseconds: int) -> int:
        """The TSC, in ticks, at `nanoseconds` of the perf clock; rounds down."""
        ticks: int = (((nanoseconds - self.zero) & _WRAP) << self.shift) // self.mult
        return ticks & _WRAP
