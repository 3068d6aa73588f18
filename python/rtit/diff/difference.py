"""The result of comparing two recordings. `rtit diff --json` prints these fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.diff.counts import CountChange
    from rtit.diff.paths import ListedInstruction

DEFAULT_STEPS = 8
"""Instructions that are listed on each side of a divergence."""
DEFAULT_TOP = 10
"""Functions, calls and contexts that are listed with their counts."""


@dataclass(frozen=True, slots=True)
class DivergencePlace:
    """A place where two paths diverge `times` times.

    `symbol` (`function+0x12`) and `source` (`file.c:12`) are of the last equal instruction; `left`
    and `right` are where each path continues, "" at its end.
    """

    times: int
    symbol: str
    source: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class AfterDivergence:
    """What follows the first divergence of two paths.

    `instructions` are equal again, `alone` are those that only one path has, of each. The paths
    diverge `times` times; `places` are the most frequent. `whole`: the comparison went to the end
    of both.
    """

    instructions: int
    alone: tuple[int, int]
    times: int
    places: tuple[DivergencePlace, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class ThreadDifference:
    """Two threads that were compared. `left` or `right` is None if only the other recording has it.

    `instructions` are equal, from the first on. At the divergence, `before` has the last of them,
    as the left thread ran them, and `after` the first that differ, of each; none at an end.
    """

    left: str | None
    right: str | None
    instructions: int
    identical: bool
    before: tuple[ListedInstruction, ...] = ()
    after: tuple[tuple[ListedInstruction, ...], tuple[ListedInstruction, ...]] = ((), ())
    later: AfterDivergence | None = None


@dataclass(slots=True)
class Difference:
    """The difference of two recordings.

    Counts that differ, the largest difference first: `functions` (instructions), `calls`, and
    `contexts` (instructions by calling context, the outermost function first; one that only one
    recording has includes its callees).
    """

    threads: list[ThreadDifference] = field(default_factory=list)
    functions: list[CountChange] = field(default_factory=list)
    calls: list[CountChange] = field(default_factory=list)
    contexts: list[CountChange] = field(default_factory=list)
    too_deep: list[str] = field(default_factory=list)
    """A sentence for each recording whose `contexts` lack some calls."""
    builds: list[str] = field(default_factory=list)
    """A sentence for each pair of files that are different builds."""
    gaps: list[str] = field(default_factory=list)
    """A sentence for each part that could not be decoded and is not compared."""

    @property
    def identical(self) -> bool:
        """Whether every thread has the same path in both recordings."""
        return all(each.identical for each in self.threads)

    @property
    def instructions(self) -> int:
        """Equal instructions of all threads, up to the first divergence of each."""
        return sum(each.instructions for each in self.threads)
