"""Counts as they are written and compared: plain values, which load little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtit.errors import InputError
from rtit.readable import as_text

if TYPE_CHECKING:
    from rtit.profile.table import Losses

Function = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Stat:
    """`counts` by name, in order: instructions, kinds of branches, calls, system calls, threads,
    processes. Instructions of each function (name, file), file and thread; those in no file belong
    to ("", "") and "".
    """

    counts: dict[str, int]
    functions: Counter[Function]
    files: Counter[str]
    threads: Counter[str]
    losses: Losses

    def as_json(self) -> dict[str, Any]:
        """For `Baseline.of` and others; functions as "name (file)"."""
        return {
            "counts": self.counts,
            "functions": {named(each): count for each, count in self.functions.most_common()},
            "files": dict(self.files.most_common()),
            "threads": dict(self.threads),
            "missing": self.missing,
        }

    @property
    def missing(self) -> list[str]:
        """What is not counted, a sentence each."""
        found = self.losses.lines(outside=False)
        if self.losses.runs:
            found.append("the system calls of those runs are in no count")
        return found


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was counted before."""

    counts: Mapping[str, int]
    functions: Mapping[str, int]

    @classmethod
    def of(cls, value: object, source: str) -> Baseline:
        """From JSON. Raises InputError."""
        names = ("counts", "functions")
        tables = [value.get(name) for name in names] if isinstance(value, dict) else []
        found: list[dict[str, int]] = [
            each
            for each in tables
            if isinstance(each, dict) and all(type(count) is int for count in each.values())
        ]
        if len(found) != len(names) or "instructions" not in found[0]:
            raise InputError("no counts as rtit stat --json writes them", source=source)
        return cls(*found)

    def changed(self, now: Stat) -> list[tuple[str, int, int]]:
        """Functions whose counts differ, the largest difference first: before, and now."""
        current = {named(each): count for each, count in now.functions.items()}
        found = [
            (name, self.functions.get(name, 0), current.get(name, 0))
            for name in self.functions.keys() | current.keys()
        ]
        found = [each for each in found if each[1] != each[2]]
        return sorted(found, key=lambda each: (-abs(each[1] - each[2]), each[0]))


def named(function: Function) -> str:
    """`name (file)`, as text."""
    name, file = function
    if not file:
        return "in no file"
    return as_text(f"{name} ({file})" if name else file)


def totals(
    instructions: int,
    conditional: tuple[int, int],
    jumps: tuple[int, int],
    calls: tuple[int, int],
    returns: int,
    system_calls: int,
    tids: int,
    pids: int,
) -> dict[str, int]:
    """The counts by name, in order. Of conditional branches there are those not taken and those
    taken, of jumps and calls the direct and the indirect ones.
    """
    return {
        "instructions": instructions,
        "conditional branches": sum(conditional),
        "taken conditional branches": conditional[1],
        "jumps": sum(jumps),
        "indirect jumps": jumps[1],
        "calls": sum(calls),
        "indirect calls": calls[1],
        "returns": returns,
        "system calls": system_calls,
        "threads": tids,
        "processes": pids,
    }
