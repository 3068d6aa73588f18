"""The difference of two recordings: its values, its text, and a JSON object of its fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtit.diff.counts import CountChange, Function

DEFAULT_STEPS = 8
"""Instructions that are listed on each side of a divergence."""
DEFAULT_TOP = 10
"""Functions, calls and contexts that are listed with their counts."""


@dataclass(frozen=True, slots=True)
class ListedInstruction:
    """An executed instruction: `function+0x12`, `file.c:12` or "", Intel syntax, and the name of
    the mapped file or "".
    """

    ip: int
    symbol: str
    source: str
    assembly: str
    file: str


@dataclass(frozen=True, slots=True)
class RepeatedDivergence:
    """An instruction after which two paths diverge `times` times.

    `symbol` (`function+0x12`) and `source` (`file.c:12`) are of the last equal instruction; `left`
    and `right` are where each path continues, "" at its end.
    """

    times: int
    symbol: str
    source: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class ComparisonAfterDivergence:
    """The comparison after the first divergence of two paths.

    `instructions` are equal again; `unmatched`, by path, are those that only one path has. The
    paths diverge `times` times; `divergences` are the most frequent. `whole`: the comparison went
    to the end of both.
    """

    instructions: int
    unmatched: tuple[int, int]
    times: int
    divergences: tuple[RepeatedDivergence, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class ThreadDifference:
    """Two threads that were compared. `left` or `right` is None if only the other recording has it.

    The first `instructions` of the left thread equal the first `right_instructions` of the right
    thread. These numbers differ if two builds are compared by function. At the divergence, `before`
    has the last of them, as the left thread ran them, and `after` the first that differ, of each;
    none at an end.
    """

    left: str | None
    right: str | None
    instructions: int
    right_instructions: int
    identical: bool
    before: tuple[ListedInstruction, ...] = ()
    after: tuple[tuple[ListedInstruction, ...], tuple[ListedInstruction, ...]] = ((), ())
    later: ComparisonAfterDivergence | None = None


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
    """A sentence for each reason why `contexts` lack some calls."""
    builds: list[str] = field(default_factory=list)
    """A sentence for each pair of files that are different builds."""
    gaps: list[str] = field(default_factory=list)
    """A sentence for each part that could not be decoded and is not compared."""

    @property
    def has_equal_paths(self) -> bool:
        """Whether every thread has the same path in both recordings."""
        return all(each.identical for each in self.threads)

    @property
    def equal_instructions(self) -> int:
        """Equal instructions of all left threads, up to the first divergence of each."""
        return sum(each.instructions for each in self.threads)

    @property
    def right_equal_instructions(self) -> int:
        """Equal instructions of all right threads, up to the first divergence of each."""
        return sum(each.right_instructions for each in self.threads)


_MAX_DIVERGENCES = 5
_MAX_FUNCTIONS = 4
"""Functions of a calling context that are shown, the innermost."""


def format_difference(found: Difference, top: int = DEFAULT_TOP) -> Iterator[str]:
    """Return the lines of a difference, with the `top` changed counts of each kind."""
    yield from found.builds
    equal = "equal by function" if found.builds else "identical"
    for thread in found.threads:
        yield from format_thread(thread, equal)
        if _is_in_dynamic_loader(thread):
            yield "  in the dynamic loader: record with --start-at main to leave it out"
    for what, changes in (
        ("instructions", found.functions),
        ("calls", found.calls),
        ("instructions, by who called whom", found.contexts),
    ):
        yield from _format_changes(
            f"{what}: only in one recording", [each for each in changes if each.is_one_sided], top
        )
        yield from _format_changes(what, [each for each in changes if not each.is_one_sided], top)
    yield from found.too_deep
    has_other_counts = bool(found.functions or found.calls or found.contexts)
    if has_other_counts:
        yield ""
    for gap in found.gaps:
        yield f"not compared: {gap}"
    count = len(found.threads)
    if found.has_equal_paths:
        but = ", but counts differ" if has_other_counts else ""
        instructions = _format_pair(found.equal_instructions, found.right_equal_instructions)
        yield f"{equal}{but}: {instructions} instructions of {count} thread{'s' * (count != 1)}"
    else:
        parted = sum(not each.identical for each in found.threads)
        yield f"DIFFERENT: {parted} of {count} threads"


def difference_json(found: Difference) -> dict[str, Any]:
    """Return all of a difference as a JSON object."""
    return {
        "identical": found.has_equal_paths,
        "instructions": found.equal_instructions,
        **asdict(found),
    }


def format_thread(thread: ThreadDifference, equal: str = "identical") -> Iterator[str]:
    """Return the lines of the difference of two threads. `equal`: the word for equal paths."""
    if thread.left is None or thread.right is None:
        which, title = ("second", thread.right) if thread.left is None else ("first", thread.left)
        yield f"{title}: only in the {which} recording"
        return
    titles = thread.left if thread.left == thread.right else f"{thread.left}, {thread.right}"
    if thread.identical:
        instructions = _format_pair(thread.instructions, thread.right_instructions)
        yield f"{titles}: {equal}: {instructions} instructions"
        return
    last = thread.before[-1] if thread.before else None
    position = "at the beginning"
    if last is not None:
        source = f" ({last.source})" if last.source else ""
        position = f"after {thread.instructions:,} equal instructions, at {last.symbol}{source}"
    yield f"{titles}: the paths diverge {position}: {last.assembly if last else ''}".rstrip(": ")
    for line in _format_instructions(thread.before):
        yield f"    {line}"
    for mark, steps in zip("-+", thread.after, strict=True):
        for line in _format_instructions(steps) or ["the end"]:
            yield f"  {mark} {line}"
    if thread.later is not None:
        yield from _format_after_divergence(thread.later)


def _format_pair(left: int, right: int) -> str:
    return f"{left:,}" if left == right else f"{left:,} and {right:,}"


def _is_in_dynamic_loader(thread: ThreadDifference) -> bool:
    steps = (*thread.before[-1:], *(each for side in thread.after for each in side[:1]))
    return any(is_dynamic_loader(each.file) for each in steps)


def is_dynamic_loader(name: str) -> bool:
    """Return whether the file of this name is the dynamic loader."""
    return name.startswith(("ld-linux", "ld.so", "ld-musl"))


def _format_after_divergence(later: ComparisonAfterDivergence) -> Iterator[str]:
    one, other = later.unmatched
    if later.whole or later.times > 1:
        yield (
            f"  then {later.instructions:,} more instructions are equal, {one:,} of the first and "
            f"{other:,} of the second are not, in {later.times:,} place{'s' * (later.times > 1)}"
        )
    if not later.whole:
        yield (
            "  not compared further: the paths do not become equal again soon, or diverge too often"
        )
    if later.times == 1:
        return
    for each in later.divergences[:_MAX_DIVERGENCES]:
        source = f" ({each.source})" if each.source else ""
        targets = " | ".join(target or "the end" for target in (each.left, each.right))
        yield f"  {each.times:8,} at {each.symbol or 'the beginning'}{source}: {targets}"


def _format_changes(what: str, changes: Sequence[CountChange], top: int) -> Iterator[str]:
    if not changes:
        return
    yield ""
    yield f"{'first':>14} {'second':>14} {'change':>14}  {what}"
    for each in changes[:top]:
        counts = f"{each.left:14,} {each.right:14,} {each.right - each.left:+14,}"
        yield f"{counts}  {format_context(each.what)}"
    if len(changes) > top:
        yield f"{'':46}... and {len(changes) - top:,} more"


def format_context(functions: Sequence[Function]) -> str:
    """Return the innermost functions of a calling context, the outermost first."""
    shown = functions[-_MAX_FUNCTIONS:]
    names = ["..."] if len(functions) > _MAX_FUNCTIONS else []
    for function, following in zip(shown, [*shown[1:], None], strict=True):
        # the last of consecutive functions of one file shows its name
        same = following is not None and following[1] == function[1]
        names.append(function[0] if same and function[0] else _function_label(function))
    return " -> ".join(names)


def _format_instructions(steps: Sequence[ListedInstruction]) -> list[str]:
    return [f"{each.symbol:32} {each.assembly:40} {each.source}".rstrip() for each in steps]


def _function_label(function: Function) -> str:
    name, file = function
    if not file:
        return name or "elsewhere"
    return f"{name} ({file})" if name else file
