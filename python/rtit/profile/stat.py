"""How much of what ran: exact counts of a whole recording, by function, file and thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtit.errors import InputError
from rtit.profile.functions import functions
from rtit.profile.gather import profile
from rtit.trace import End
from rtit.x86 import Class

if TYPE_CHECKING:
    from rtit.profile.table import Losses, Profile
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
            "missing": self.losses.lines(),
        }


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
    """`name (file)`."""
    name, file = function
    if not file:
        return "in no file"
    return f"{name} ({file})" if name else file


def stat(trace: Trace, streams: Sequence[Stream]) -> Stat:
    """Decode the streams and count. Raises what decoding raises."""
    tids = len({stream.tid for stream in streams})
    return summed(profile(trace, streams), tids, len({stream.pid for stream in streams}))


def summed(found: Profile, tids: int, pids: int) -> Stat:
    """The sums of a profile, of so many threads and processes."""
    by_kind = found.transfers
    taken = by_kind[End.CONDITIONAL]
    system_calls = sum(int(each.count[each.kind == Class.SYSCALL].sum()) for each in found.binaries)
    counts = {
        "instructions": found.instructions,
        "conditional branches": taken + by_kind[End.CUT],
        "taken conditional branches": taken,
        "jumps": by_kind[End.JUMP] + by_kind[End.INDIRECT_JUMP],
        "indirect jumps": by_kind[End.INDIRECT_JUMP],
        "calls": by_kind[End.CALL] + by_kind[End.INDIRECT_CALL],
        "indirect calls": by_kind[End.INDIRECT_CALL],
        "returns": by_kind[End.RETURN],
        "system calls": system_calls,
        "threads": tids,
        "processes": pids,
    }
    threads: Counter[str] = Counter()
    for title, count in found.threads:
        threads[title] += count
    by_function: Counter[Function] = Counter()
    files: Counter[str] = Counter()
    for binary in found.binaries:
        rows = zip(functions(binary, binary.offset), binary.count.tolist(), strict=True)
        for function, count in rows:
            by_function[function] += count
        files[binary.name] += binary.instructions
    rest = found.losses.elsewhere + found.losses.rewritten
    if rest:
        by_function["", ""] += rest
        files[""] += rest
    return Stat(counts, by_function, files, threads, found.losses)
