"""Counts of a whole recording: instructions, branches, calls, and by function, file and thread.

`rtit stat` prints and stores a `Stat`; a `StoredBaseline` is one that was stored before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rtit.errors import InputError, UsageError
from rtit.text_escaping import name_to_text

if TYPE_CHECKING:
    from rtit.profile.losses import ProfileLosses
    from rtit.profile.tables import Profile
    from rtit.trace import Stream, Trace

Function = tuple[str, str]
"""Name of the function, and name of its file."""
_NO_FILE = "in no file"


@dataclass(frozen=True, slots=True)
class Stat:
    """Exact counts of a run.

    `counts` has instructions, kinds of branches, calls, system calls, threads, processes, by name.
    The other tables have instructions. Code in no file belongs to the function ("", "") and the
    file "". `processes` and `tests` are of programs counted under QEMU, by `process_label`; `tests`
    has the processes that ran one test. `notes` are sentences about the counts.
    """

    counts: dict[str, int]
    functions: Counter[Function]
    files: Counter[str]
    threads: Counter[str]
    losses: ProfileLosses
    processes: Counter[str] = field(default_factory=Counter)
    tests: Counter[str] = field(default_factory=Counter)
    notes: tuple[str, ...] = ()
    region: str = ""
    """The `Region` that was counted; empty for the whole run."""

    def as_json(self) -> dict[str, Any]:
        """Return the counts as JSON, with functions as "name (file)".

        `processes`, `tests`, `notes` and `region` are left out if they are empty.
        """
        found = {
            "counts": self.counts,
            "functions": {
                function_label(each): count for each, count in self.functions.most_common()
            },
            "files": dict(self.files.most_common()),
            "threads": dict(self.threads),
            "missing": self.describe_uncounted_code,
        }
        more = {
            "processes": dict(self.processes.most_common()),
            "tests": dict(self.tests.most_common()),
            "notes": list(self.notes),
            "region": self.region,
        }
        return found | {name: value for name, value in more.items() if value}

    @property
    def describe_uncounted_code(self) -> list[str]:
        """A sentence for each kind of code that is not counted."""
        found = self.losses.describe_losses(unmapped=False)
        if self.losses.uncounted_runs:
            found.append("the system calls of those runs are in no count")
        return found


def add_stats(recordings: Iterable[tuple[str, Stat]]) -> Stat:
    """Return the sum of the counts of whole recordings, which are called by these names."""
    from rtit.profile.losses import ProfileLosses

    counts: Counter[str] = Counter()
    functions: Counter[Function] = Counter()
    files: Counter[str] = Counter()
    threads: Counter[str] = Counter()
    losses = ProfileLosses()
    for name, found in recordings:
        counts.update(found.counts)
        functions.update(found.functions)
        files.update(found.files)
        threads.update(found.threads)
        losses.problems += [f"{name}: {line}" for line in found.describe_uncounted_code]
    return Stat({**counts}, functions, files, threads, losses)


@dataclass(frozen=True, slots=True)
class Region:
    """The calls of `function`, or from each execution of `start` to the next one of `stop`.

    `function`, `start` and `stop` are NAME, NAME@FILE, or an address as 0x401136. Raises UsageError
    if neither or both are given.
    """

    function: str = ""
    start: str = ""
    stop: str = ""

    def __post_init__(self) -> None:
        if bool(self.start) != bool(self.stop):
            raise UsageError("--from and --to must be given together")
        if bool(self.function) == bool(self.start):
            raise UsageError("give --function NAME, or --from A --to B")

    @classmethod
    def from_parameters(cls, function: str, between: tuple[str, str] | None) -> Region | None:
        """Return the region of a Python call; None for the whole run. Raises UsageError."""
        return cls(function, *(between or ())) if function or between is not None else None

    def __str__(self) -> str:
        return self.function or f"{self.start} to {self.stop}"


@dataclass(frozen=True, slots=True)
class StoredBaseline:
    """Counts that were stored before."""

    counts: Mapping[str, int]
    functions: Mapping[str, int]
    tests: Mapping[str, int] = field(default_factory=dict)
    region: str = ""

    @classmethod
    def from_json(cls, value: object, source: str) -> StoredBaseline:
        """Return the counts in a JSON value. Raises InputError."""
        names = ("counts", "functions", "tests")
        fields = {"tests": {}, "region": "", **value} if isinstance(value, dict) else {}
        tables = [fields.get(name) for name in names]
        found: list[dict[str, int]] = [
            each
            for each in tables
            if isinstance(each, dict) and all(type(count) is int for count in each.values())
        ]
        if len(found) != len(names) or "instructions" not in found[0]:
            raise InputError("no counts as rtit stat --json writes them", source=source)
        counts, functions, tests = found
        return cls(counts, functions, tests, str(fields["region"]))

    def changed_functions(self, now: Stat) -> list[tuple[str, int, int]]:
        """Return name, old and new count of functions that differ, the largest difference first.

        Functions of a renamed file have the new name.
        """
        current = {function_label(each): count for each, count in now.functions.items()}
        before = self.functions
        if (renamed := self.renamed_file(now)) is not None:
            before = {_rename_file(label, *renamed): count for label, count in before.items()}
        return _changed_counts(before, current)

    def changed_tests(self, now: Stat) -> list[tuple[str, int, int]]:
        """Return name, old and new count of tests that differ, the largest difference first."""
        return _changed_counts(self.tests, now.tests)

    def renamed_file(self, now: Stat) -> tuple[str, str] | None:
        """Return the old and the new name of a file; None unless exactly one name differs."""
        old, new = (
            {label.rpartition(" (")[2].removesuffix(")") for label in labels} - {_NO_FILE}
            for labels in (self.functions, map(function_label, now.functions))
        )
        if len(old - new) != 1 or len(new - old) != 1:
            return None
        return (old - new).pop(), (new - old).pop()


def _changed_counts(
    before: Mapping[str, int], now: Mapping[str, int]
) -> list[tuple[str, int, int]]:
    """Return name, old and new count of those that differ, the largest difference first."""
    found = [(name, before.get(name, 0), now.get(name, 0)) for name in before.keys() | now.keys()]
    found = [each for each in found if each[1] != each[2]]
    return sorted(found, key=lambda each: (-abs(each[1] - each[2]), each[0]))


def _rename_file(label: str, old: str, new: str) -> str:
    """Return a function's label with another file."""
    if label == old:
        return new
    name = label.removesuffix(f" ({old})")
    if name == label:
        return label
    if name.startswith(f"{old}+0x"):  # a function without a symbol
        name = new + name.removeprefix(old)
    return f"{name} ({new})"


def function_label(function: Function) -> str:
    """Return `name (file)`."""
    name, file = function
    if not file:
        return _NO_FILE
    return name_to_text(f"{name} ({file})" if name else file)


PARTS_OF_COUNTS = ("taken conditional branches", "indirect jumps", "indirect calls")
"""Counts that the preceding count includes."""


def name_counts(
    instructions: int,
    conditional: tuple[int, int],
    jumps: tuple[int, int],
    calls: tuple[int, int],
    returns: int,
    system_calls: int,
    tids: int,
    pids: int,
) -> dict[str, int]:
    """Return the counts by name, in the order in which they are printed.

    `conditional` has branches not taken and taken, `jumps` and `calls` direct and indirect ones.
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
    """Decode the streams and return their counts. Raises what decoding raises."""
    who = {each for stream in streams for each in stream.thread_ids}
    pids, tids = {pid for pid, _ in who}, {tid for _, tid in who}
    from rtit.profile.builder import build_profile

    return summarize_profile(build_profile(trace, streams), len(tids), len(pids))


def summarize_profile(found: Profile, tids: int, pids: int) -> Stat:
    """Return the counts of a profile with so many threads and processes."""
    from rtit.profile.functions import instructions_by_function
    from rtit.trace import End
    from rtit.x86 import InstructionClass

    by_kind = found.transfers
    system_calls = sum(
        int(each.count[each.kind == InstructionClass.SYSCALL].sum()) for each in found.binaries
    )
    counts = name_counts(
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
        for function, count in instructions_by_function(binary):
            by_function[function] += count
        files[binary.name] += binary.executed_instructions
    for function, count in found.unmapped_code.items():
        by_function[function] += count
        files[function[1]] += count
    rest = (
        found.losses.instructions_in_no_file
        + found.losses.changed_code
        - found.unmapped_code.total()
    )
    if rest > 0:
        by_function["", ""] += rest
        files[""] += rest
    return Stat(counts, by_function, files, threads, found.losses)
