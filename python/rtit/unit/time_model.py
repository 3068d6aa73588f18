"""The clocks of a modelled processor (section 33.8.3.1).

Everything follows from one number, the retired instructions: core cycles by a fixed CPI, TSC ticks
by the ratio of P1 to the core's ratio, crystal clocks by CPUID.15H. The same program gives the same
times on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rtit.errors import UsageError
from rtit.registers.profiles import Profile

_MOST_TICKS = 512
"""FastCounter of TMA has 9 bits (section 33.4.2.13)."""

_BUS_HZ = 100_000_000
_UNLISTED_CRYSTAL_HZ = 24_000_000
"""The crystal of client processors with CPUID.15H:ECX = 0, which are Skylake and its successors."""


@dataclass(frozen=True, slots=True)
class TimeModel:
    """The relation of the clocks. Methods take `clock` (retired instructions) or `cycle` (core
    cycles).

    `cpi`: core cycles per instruction. `tsc_start`: the TSC at core cycle `since`. `tsc_adjust`:
    the software offset of section 33.8.3.1 (IA32_TSC_ADJUST), which TSC packets include and ART
    does not. `crystal_hz`, `tsc_numerator`, `tsc_denominator`: ECX, EBX and EAX of CPUID.15H, at
    most 512 ticks per crystal clock. `max_non_turbo_ratio`: MSR_PLATFORM_INFO[15:8] (P1);
    `core_ratio`: the current ratio (in CBR); both in multiples of `bus_hz`. `time_zero`,
    `time_shift` and `time_mult` convert TSC to nanoseconds as perf does.

    Raises UsageError for a value that is not positive, or if crystal and bus disagree by more than
    1 % on the frequency of the TSC. The bus frequency is nominal: real processors differ by up to
    0.5 %.
    """

    cpi: int = 1
    tsc_start: int = 1_000_000_000
    tsc_adjust: int = 0
    crystal_hz: int = 25_000_000
    tsc_numerator: int = 80
    tsc_denominator: int = 2
    bus_hz: int = 100_000_000
    max_non_turbo_ratio: int = 10
    core_ratio: int = 10
    time_zero: int = 0
    time_shift: int = 10
    time_mult: int = 1024
    since: int = 0

    def __post_init__(self) -> None:
        for name in (
            "cpi",
            "crystal_hz",
            "tsc_numerator",
            "tsc_denominator",
            "bus_hz",
            "max_non_turbo_ratio",
            "core_ratio",
        ):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be positive, not {getattr(self, name)}")
        if self.core_ratio > 255 or self.max_non_turbo_ratio > 255:
            raise UsageError("a ratio to the bus clock has 8 bits: 1 to 255")
        if self.tsc_numerator > _MOST_TICKS * self.tsc_denominator:
            raise UsageError(
                f"{self.tsc_numerator}/{self.tsc_denominator} TSC ticks pass in a crystal clock; "
                f"TMA counts {_MOST_TICKS}"
            )
        if self.tsc_start < 0:
            raise UsageError(f"tsc_start must not be negative, is {self.tsc_start}")
        p1_hz = self.bus_hz * self.max_non_turbo_ratio
        difference = self.crystal_hz * self.tsc_numerator - p1_hz * self.tsc_denominator
        if abs(difference) * 100 > p1_hz * self.tsc_denominator:
            raise UsageError(
                f"the crystal makes the TSC run at {self.crystal_hz} * {self.tsc_numerator} / "
                f"{self.tsc_denominator} Hz, the bus at {p1_hz} Hz"
            )

    @classmethod
    def from_profile(cls, profile: Profile) -> TimeModel:
        """Return the clock of CPUID.15H at the P1 frequency; the default without that leaf."""
        numerator, denominator = profile.tsc_numerator, profile.tsc_denominator
        if not (numerator and denominator):
            return cls()
        crystal_hz = profile.crystal_hz or _UNLISTED_CRYSTAL_HZ
        tsc_hz = crystal_hz * numerator // denominator
        p1 = (tsc_hz + _BUS_HZ // 2) // _BUS_HZ
        shift = cls().time_shift if tsc_hz == cls().tsc_hz else 31
        return cls(
            crystal_hz=crystal_hz,
            tsc_numerator=numerator,
            tsc_denominator=denominator,
            max_non_turbo_ratio=p1,
            core_ratio=p1,
            time_shift=shift,
            time_mult=(1_000_000_000 << shift) // tsc_hz,
        )

    @property
    def tsc_hz(self) -> int:
        """Frequency of the TSC, by the crystal."""
        return self.crystal_hz * self.tsc_numerator // self.tsc_denominator

    def tsc(self, clock: int) -> int:
        """Return the TSC as RDTSC reads it after `clock` retired instructions."""
        return self.tsc_at(clock * self.cpi)

    def nanoseconds(self, clock: int) -> int:
        """Return perf's time after `clock` retired instructions."""
        return self.time_zero + (self.tsc(clock) * self.time_mult >> self.time_shift)

    def ticks_at(self, cycle: int) -> int:
        """Return ticks at TSC rate, without software offset."""
        passed = cycle - self.since
        return self.tsc_start + passed * self.max_non_turbo_ratio // self.core_ratio

    def tsc_at(self, cycle: int) -> int:
        """Return the TSC at a core cycle, modulo 2^64."""
        return (self.ticks_at(cycle) + self.tsc_adjust) & 0xFFFF_FFFF_FFFF_FFFF

    def art_at(self, cycle: int) -> int:
        """Return the Always Running Timer (core crystal clock) at a core cycle."""
        return self.ticks_at(cycle) * self.tsc_denominator // self.tsc_numerator

    def fast_counter_at(self, cycle: int) -> int:
        """Return AdjustedProcessorCycles: ticks at TSC rate since the last crystal clock edge."""
        edge = -(-self.art_at(cycle) * self.tsc_numerator // self.tsc_denominator)
        return self.ticks_at(cycle) - edge

    def cycle_of_art(self, art: int) -> int:
        """Return the first core cycle at which the ART has reached `art`."""
        ticks = -(-art * self.tsc_numerator // self.tsc_denominator)
        passed = -(-(ticks - self.tsc_start) * self.core_ratio // self.max_non_turbo_ratio)
        return self.since + passed

    def after_sleep(self, cycle: int, ticks: int, *, tsc_runs: bool = True) -> TimeModel:
        """Return the clocks after a sleep at `cycle` of `ticks` at TSC rate and no core cycle.

        The ART runs on; `tsc_runs` says whether the TSC does (CPUID.80000007H:EDX[8]).
        """
        return replace(
            self,
            since=cycle,
            tsc_start=self.ticks_at(cycle) + ticks,
            tsc_adjust=self.tsc_adjust - (0 if tsc_runs else ticks),
        )

    def with_core_ratio(self, cycle: int, ratio: int) -> TimeModel:
        """Return the clocks with another core ratio (1 to 255) from `cycle` on."""
        return replace(self, since=cycle, tsc_start=self.ticks_at(cycle), core_ratio=ratio)
