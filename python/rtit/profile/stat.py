"""Counts as they are written and compared: plain values, which load little.

How much of what ran: exact counts of a whole recording, by function, file and thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtit.errors import InputError
from rtit.profile.builder import profile
from rtit.profile.source_lines import counted
from rtit.readable import as_text
from rtit.trace import End
from rtit.x86 import Class

if TYPE_CHECKING:
    from rtit.profile.tables import Losses, Profile
    from rtit.trace import Stream, Trace


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


def stat(trace: Trace, streams: Sequence[Stream]) -> Stat:
    """Decode the streams and count. Raises what decoding raises."""
    who = {each for stream in streams for each in stream.whose}
    pids, tids = {pid for pid, _ in who}, {tid for _, tid in who}
    return summed(profile(trace, streams), len(tids), len(pids))


def summed(found: Profile, tids: int, pids: int) -> Stat:
    """The sums of a profile, of so many threads and processes."""
    by_kind = found.transfers
    system_calls = sum(int(each.count[each.kind == Class.SYSCALL].sum()) for each in found.binaries)
    counts = totals(
        found.instructions,
        (by_kind[End.CUT], by_kind[End.CONDITIONAL]),
        (by_kind[End.JUMP], by_kind[End.INDIRECT_JUMP]),
        (by_kind[End.CALL], by_kind[End.INDIRECT_CALL]),
        by_kind[End.RETURN],
        system_calls,
        tids,
        pids,
    )
    threads: Counter[str] = Counter()
    for title, count in found.threads:
        threads[title] += count
    by_function: Counter[Function] = Counter()
    files: Counter[str] = Counter()
    for binary in found.binaries:
        for function, count in counted(binary):
            by_function[function] += count
        files[binary.name] += binary.instructions
    for function, count in found.outside.items():
        by_function[function] += count
        files[function[1]] += count
    rest = found.losses.outside + found.losses.rewritten - found.outside.total()
    if rest > 0:
        by_function["", ""] += rest
        files[""] += rest
    return Stat(counts, by_function, files, threads, found.losses)
