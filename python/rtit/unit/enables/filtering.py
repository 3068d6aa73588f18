"""Filters: by CPL, by CR3, by IP, and TraceStop (sections 33.2.5.1 to 33.2.5.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Range = tuple[int, int]
"""First and last address, both inside."""

FILTER_EN = 1
TRACE_STOP = 2
"""Values of ADDRn_CFG (Table 33-6)."""


def cpl_allowed(privilege: int, *, os: bool, user: bool) -> bool:
    """True unless the CPL filter of section 33.2.5.1 forbids code at this CPL."""
    return os if privilege == 0 else user


def cr3_matches(cr3: int, match: int, *, pae_paging: bool) -> bool:
    """Section 33.2.5.2: bits 63:12 are compared, in PAE paging bits 63:5."""
    low = 5 if pae_paging else 12
    return cr3 >> low == match >> low


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ADDRn ranges in use: those that set FilterEn and those that stop the trace.

    An instruction lies in a range when its first byte does.
    """

    filter: tuple[Range, ...] = ()
    stop: tuple[Range, ...] = ()

    @classmethod
    def of(cls, configured: Iterable[tuple[int, int, int]]) -> Ranges:
        """From (ADDRn_CFG, ADDRn_A, ADDRn_B) of every range that the processor has."""
        configured = tuple(configured)
        return cls(
            tuple((a, b) for cfg, a, b in configured if cfg == FILTER_EN),
            tuple((a, b) for cfg, a, b in configured if cfg == TRACE_STOP),
        )

    @property
    def used(self) -> bool:
        """True if any range is configured."""
        return bool(self.filter or self.stop)

    def filter_en(self, ip: int) -> bool:
        """FilterEn at `ip`; without FilterEn ranges all code is inside (section 33.2.6.5)."""
        return not self.filter or any(first <= ip <= last for first, last in self.filter)

    def stops(self, ip: int) -> bool:
        """True if a branch or event that lands at `ip` meets the TraceStop condition."""
        return any(first <= ip <= last for first, last in self.stop)


NO_RANGES = Ranges()
