"""A difference for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rtit.diff.difference import TOP
from rtit.diff.paths import assembly_of

if TYPE_CHECKING:
    from rtit.diff.counts import Change, Function
    from rtit.diff.difference import Difference, Later, Thread


_PLACES = 5
_SHOWN = 4
"""Functions of a path, the innermost."""


def text(found: Difference, top: int = TOP) -> Iterator[str]:
    """The lines; of changed counts the first `top`."""
    yield from found.builds
    for thread in found.threads:
        yield from _thread(thread)
    for what, changes in (
        ("instructions", found.functions),
        ("calls", found.calls),
        ("instructions, by who called whom", found.contexts),
    ):
        yield from _changes(f"{what}: in one alone", [each for each in changes if each.alone], top)
        yield from _changes(what, [each for each in changes if not each.alone], top)
    yield from found.too_deep
    if found.functions or found.calls or found.contexts:
        yield ""
    for gap in found.gaps:
        yield f"not compared: {gap}"
    count = len(found.threads)
    if found.identical:
        how = ", of two builds by function" if found.builds else ""
        yield f"identical{how}: {found.instructions:,} instructions of {count} threads"
    else:
        parted = sum(not each.identical for each in found.threads)
        yield f"DIFFERENT: {parted} of {count} threads"


def as_json(found: Difference) -> dict[str, Any]:
    """All of it, for JSON."""
    return {
        "identical": found.identical,
        "instructions": found.instructions,
        **asdict(found),
    }


def _thread(thread: Thread) -> Iterator[str]:
    if thread.left is None or thread.right is None:
        which, title = ("second", thread.right) if thread.left is None else ("first", thread.left)
        yield f"{title}: in the {which} alone"
        return
    titles = thread.left if thread.left == thread.right else f"{thread.left}, {thread.right}"
    if thread.identical:
        yield f"{titles}: identical: {thread.instructions:,} instructions"
        return
    last = thread.before[-1] if thread.before else None
    where = "at the beginning"
    if last is not None:
        source = f" ({last.source})" if last.source else ""
        where = f"after {thread.instructions:,} equal instructions, at {last.symbol}{source}"
    yield f"{titles}: they part {where}: {last.assembly if last else ''}".rstrip(": ")
    for line in assembly_of(thread.before):
        yield f"    {line}"
    for mark, steps in zip("-+", thread.after, strict=True):
        for line in assembly_of(steps) or ["the thread has ended"]:
            yield f"  {mark} {line}"
    if thread.later is not None:
        yield from _later(thread.later)


def _later(later: Later) -> Iterator[str]:
    one, other = later.alone
    if later.whole or later.times > 1:
        yield (
            f"  then {later.instructions:,} more instructions are equal, {one:,} of the first and "
            f"{other:,} of the second are not, in {later.times:,} place{'s' * (later.times > 1)}"
        )
    if not later.whole:
        yield "  compared no further: they do not meet again soon, or part too often"
    if later.times == 1:
        return
    for place in later.places[:_PLACES]:
        source = f" ({place.source})" if place.source else ""
        ways = " | ".join(each or "the end" for each in (place.left, place.right))
        yield f"  {place.times:8,} at {place.symbol or 'the beginning'}{source}: {ways}"


def _changes(what: str, changes: Sequence[Change], top: int) -> Iterator[str]:
    if not changes:
        return
    yield ""
    yield f"{'first':>14} {'second':>14} {'change':>14}  {what}"
    for each in changes[:top]:
        shown = each.what[-_SHOWN:]
        names = ["..."] if len(each.what) > _SHOWN else []
        for function, following in zip(shown, [*shown[1:], None], strict=True):
            # of functions of one file the last has its name
            same = following is not None and following[1] == function[1]
            names.append(function[0] if same and function[0] else _name(function))
        yield (
            f"{each.left:14,} {each.right:14,} {each.right - each.left:+14,}  {' -> '.join(names)}"
        )
    if len(changes) > top:
        yield f"{'':46}... and {len(changes) - top:,} more"


def _name(function: Function) -> str:
    name, file = function
    if not file:
        return "elsewhere"
    return f"{name} ({file})" if name else file
