"""How much of a difference is shown, if nobody says.

What two recordings do not share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rtit.diff.counts import Change
from rtit.diff.paths import Step

STEPS = 8
"""Instructions on each side of the place where paths part."""
TOP = 10
"""Functions and calls whose counts differ."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where two paths part `times` times: behind which function, `function+0x12` and `file.c:12`,
    and where each went on, "" at an end.
    """

    times: int
    symbol: str
    source: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Later:
    """What follows where two paths part for the first time: so many `instructions` are equal again,
    so many are in the one and the other `alone`; they part so many `times` in all, at these places,
    the most frequent first, of which some are named. `whole`: up to the end of both.
    """

    instructions: int
    alone: tuple[int, int]
    times: int
    places: tuple[Place, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Thread:
    """Two threads that were compared; `left` or `right` is None where there is only the other.

    `instructions` are equal, from the first on. If the paths part then, `before` has the last of
    these, as the left one has them, `after` what each did instead of the other, nothing at an end,
    and `later` what became of them.
    """

    left: str | None
    right: str | None
    instructions: int
    identical: bool
    before: tuple[Step, ...] = ()
    after: tuple[tuple[Step, ...], tuple[Step, ...]] = ((), ())
    later: Later | None = None


@dataclass(slots=True)
class Difference:
    """What two recordings do not share.

    `functions` (instructions), `calls` and `contexts` (instructions, by functions that were called
    within one another, the outermost first; what only one has, with all below it) are counts that
    differ, the largest difference first. `too_deep`: a sentence for either in which `contexts` has
    not all calls. `builds`: of files that are other builds in the one than in the other, a sentence
    each: how they are compared. `gaps`: what could not be decoded, which nobody compared.
    """

    threads: list[Thread] = field(default_factory=list)
    functions: list[Change] = field(default_factory=list)
    calls: list[Change] = field(default_factory=list)
    contexts: list[Change] = field(default_factory=list)
    too_deep: list[str] = field(default_factory=list)
    builds: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """Whether every thread of either has the same path in the other."""
        return all(each.identical for each in self.threads)

    @property
    def instructions(self) -> int:
        """How many are equal, of all threads."""
        return sum(each.instructions for each in self.threads)
