"""The fact in a recording of a whole system that has the comparisons of QEMU's log.

The trace unit has CR3 and interrupts from the log of QEMU. The recorder compares them with the
state of the emulated processors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

FACT = "differences of log and state"
_ENTRY = re.compile(r"(\d+) of (\d+) for ([^\s,]+)")


class LogComparison(NamedTuple):
    """How often a value of QEMU's log was compared with the state of the processors."""

    name: str
    """CPL, CR3 or RFLAGS.IF."""
    comparisons: int
    differences: int

    def __str__(self) -> str:
        differ = f"{self.differences:,} of " if self.differences else ""
        what = "comparisons of QEMU's log with the state of the processors"
        return f"{differ}{self.comparisons:,} {what}"


def format_comparisons(comparisons: Iterable[LogComparison]) -> str:
    """Return the comparisons as a fact, which `parse_comparisons` reads."""
    return ", ".join(
        f"{each.differences} of {each.comparisons} for {each.name}" for each in comparisons
    )


def parse_comparisons(fact: str) -> list[LogComparison]:
    """Return the comparisons of a fact."""
    found = _ENTRY.findall(fact)
    return [LogComparison(name, int(count), int(differ)) for differ, count, name in found]
