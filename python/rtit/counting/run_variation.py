"""Compare several runs of one program: which counts differ, and known reasons for that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rtit.profile.stat import Stat, function_label

Range = tuple[str, int, int]
"""A name, the least count and the greatest."""

_REASONS = {
    "python": "python hashes with another seed each run: PYTHONHASHSEED=0 fixes it",
    "perl": "perl hashes with another seed each run: PERL_HASH_SEED=0 fixes it",
    "ruby": "ruby hashes with another seed each run",
    "node": "node compiles and collects garbage in threads: --single-threaded keeps to one",
}
_SHARED = (
    "of threads the order is another each time, and so is how often they wait for each other: "
    "taskset -c 0 helps, one thread more"
)
_ANY = (
    "what else may differ: the time and process numbers that a program prints or hashes, random "
    "seeds, the files that it finds and their order, and the environment's size"
)


@dataclass(frozen=True, slots=True)
class RunVariation:
    """The counts of several runs of one program; at least one run."""

    runs: Sequence[Stat]

    @property
    def least(self) -> Stat:
        """Return the run with the fewest instructions."""
        return min(self.runs, key=lambda each: each.counts["instructions"])

    @property
    def counts(self) -> list[Range]:
        """Return the counts that differ, in order."""
        return _differing_counts([each.counts for each in self.runs])

    @property
    def functions(self) -> list[Range]:
        """Return the functions with different counts, those with the most instructions first."""
        tables = [
            {function_label(each): count for each, count in run.functions.items()}
            for run in self.runs
        ]
        return sorted(_differing_counts(tables), key=lambda each: (each[1] - each[2], each[0]))

    def why(self) -> list[str]:
        """Return a sentence for each known reason for such differences; none if runs are equal."""
        if not self.counts and not self.functions:
            return []
        files = {name for run in self.runs for name in run.files}
        found = [
            text
            for name, text in _REASONS.items()
            if any(each.removeprefix("lib").startswith(name) for each in files)
        ]
        if any(run.counts["threads"] > run.counts["processes"] for run in self.runs):
            found.append(_SHARED)
        return [*found, _ANY]

    def as_json(self) -> dict[str, object]:
        """The counts of each run that had not the same in all."""
        return {
            "instructions": [each.counts["instructions"] for each in self.runs],
            "counts": {name: [least, most] for name, least, most in self.counts},
            "functions": {name: [least, most] for name, least, most in self.functions},
            "why": self.why(),
        }


def _differing_counts(tables: Sequence[Mapping[str, int]]) -> list[Range]:
    names: Iterable[str] = dict.fromkeys(name for table in tables for name in table)
    found = []
    for name in names:
        each = [table.get(name, 0) for table in tables]
        if min(each) != max(each):
            found.append((name, min(each), max(each)))
    return found
