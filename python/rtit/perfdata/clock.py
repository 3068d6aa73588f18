"""Conversion between the perf clock and the TSC.

Sideband records have times of the perf clock in nanoseconds, packets have TSC ticks. The kernel
publishes three numbers of a machine for the conversion (`time_shift`, `time_mult`, `time_zero` of
perf_event_mmap_page), and perf copies them into AUXTRACE_INFO and TIME_CONV. A clock with fewer
than 64 bits (arm64) needs two more: `time_cycles` and `time_mask`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

_WRAP = (1 << 64) - 1
_HALF = 32


@dataclass(frozen=True, slots=True)
class TimeConversion:
    """ns = zero + (tsc * mult >> shift), in arithmetic modulo 2**64.

    `shift` is 0..63, `mult` 1..2**32-1, `zero` 0..2**64-1; ValueError otherwise: a `mult` of 0
    could not be inverted. For a clock of fewer than 64 bits, `mask` has its bits, and `cycles` is a
    reference count from which its upper bits are extended.
    """

    shift: int
    mult: int
    zero: int
    cycles: int = 0
    mask: int = _WRAP

    def __post_init__(self) -> None:
        if not 0 <= self.shift < 64:
            raise ValueError(f"time_shift is {self.shift}, not 0..63")
        if not 0 < self.mult <= 0xFFFF_FFFF:
            raise ValueError(f"time_mult is {self.mult}, not 1..2**32-1")
        for name, value in (("zero", self.zero), ("cycles", self.cycles), ("mask", self.mask)):
            if not 0 <= value <= _WRAP:
                raise ValueError(f"time_{name} is {value}, not 0..2**64-1")

    def to_nanoseconds(self, tsc: int) -> int:
        """Return the perf clock, in ns, at TSC value `tsc` (0..2**64-1)."""
        if self.mask != _WRAP:
            tsc = self.cycles + (tsc - self.cycles & self.mask) & _WRAP
        return (self.zero + (tsc * self.mult >> self.shift)) & _WRAP

    def nanoseconds(self, tsc: ArrayLike) -> NDArray[np.uint64]:
        """Return `to_nanoseconds` of each element of an array; exact."""
        import numpy as np

        def u64(value: int) -> np.uint64:
            return np.uint64(value & _WRAP)

        cycles, mult, shift = u64(self.cycles), u64(self.mult), u64(self.shift)
        with np.errstate(over="ignore"):
            ticks = (np.asarray(tsc, np.uint64) - cycles & u64(self.mask)) + cycles
            whole = (ticks >> shift) * mult
            rest = ticks & u64((1 << self.shift) - 1)
            if self.shift <= _HALF:
                part = rest * mult >> shift
            else:
                # rest * mult can exceed 64 bits, so it is computed in two halves.
                high = (rest >> u64(_HALF)) * mult
                low = (rest & u64((1 << _HALF) - 1)) * mult
                part = high + (low >> u64(_HALF)) >> u64(self.shift - _HALF)
            result: NDArray[np.uint64] = whole + part + u64(self.zero)
        return result

    def ticks(self, nanoseconds: ArrayLike) -> NDArray[np.uint64]:
        """Return `to_tsc` of each element of an array; exact."""
        import numpy as np

        times = np.asarray(nanoseconds, np.uint64)
        if self.shift > _HALF:
            exact = [self.to_tsc(each) for each in times.ravel().tolist()]
            return np.array(exact, np.uint64).reshape(times.shape)
        mult, shift = np.uint64(self.mult), np.uint64(self.shift)
        with np.errstate(over="ignore"):
            whole, rest = np.divmod(times - np.uint64(self.zero), mult)
            result: NDArray[np.uint64] = (whole << shift) + (rest << shift) // mult
        return result

    def to_tsc(self, nanoseconds: int) -> int:
        """Return the TSC at `nanoseconds` of the perf clock, rounded down."""
        ticks: int = (((nanoseconds - self.zero) & _WRAP) << self.shift) // self.mult
        return ticks & _WRAP
