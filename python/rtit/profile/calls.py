"""Who called whom, and within whom, of all streams together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rtit.image import UPPER, has_file
from rtit.profile.table import NOWHERE

if TYPE_CHECKING:
    from rtit.profile.table import Profile
    from rtit.trace import Stream, Trace

_NONE = (1 << 64) - 1


class Place(NamedTuple):
    """`Binary.number` and an offset in its file; NOWHERE and an address or, for what called the
    first function, 0.
    """

    binary: int
    offset: int


@dataclass(slots=True)
class Call:
    """How often, and how many instructions ran until it returned; where the same was called again
    meanwhile these count once.
    """

    count: int = 0
    inclusive: int = 0


@dataclass(slots=True)
class Calls:
    """`by_ends`: all calls by where from and where to. `contexts`: instructions of a function
    itself by where it and each that called it was called: (called, called from), outermost first.
    """

    by_ends: dict[tuple[Place, Place], Call] = field(default_factory=dict)
    contexts: dict[tuple[tuple[Place, Place], ...], int] = field(default_factory=dict)


def calls(
    trace: Trace, streams: Sequence[Stream], profile: Profile, *, contexts: bool = False
) -> Calls:
    """Decode the streams once more, in order, and follow calls and returns."""
    from rtit import _core

    numbers = {(each.path, each.build_id): each.number for each in profile.binaries}
    result = Calls()
    for stream in streams:
        regions = sorted(trace.images.mappings(stream.tid), key=lambda each: each.start)
        found = _core.calls(stream.native(), trace.symbols.names(stream.tid))
        columns = {name: memoryview(column).tolist() for name, column in found.items()}

        def place(region: int, offset: int) -> Place:
            if region == _NONE:
                return Place(NOWHERE, offset)
            mapping = regions[region]  # noqa: B023 - used within the loop alone
            if not has_file(mapping.path) or mapping.start >= UPPER:
                return Place(NOWHERE, offset - mapping.offset + mapping.start)
            symbols = trace.images.files.symbols(mapping.path, mapping.build_id)
            build_id = mapping.build_id or (symbols.elf.build_id if symbols else None)
            return Place(numbers.get((mapping.path, build_id), NOWHERE), offset)

        ends = [
            (place(*row[:2]), place(*row[2:]))
            for row in zip(
                columns["from_region"],
                columns["from_offset"],
                columns["to_region"],
                columns["to_offset"],
                strict=True,
            )
        ]
        for key, count, inclusive in zip(ends, columns["calls"], columns["inclusive"], strict=True):
            call = result.by_ends.setdefault(key, Call())
            call.count += count
            call.inclusive += inclusive
        if contexts:
            _add_contexts(result, ends, columns)
        stream.forget()
    return result


def _add_contexts(
    result: Calls, ends: list[tuple[Place, Place]], columns: dict[str, list[int]]
) -> None:
    parents, called, owns = columns["parent"], columns["call"], columns["own"]
    for row, own in enumerate(owns):
        if not own:
            continue
        stack = []
        at = row
        while at != _NONE:
            source, target = ends[called[at]]
            stack.append((target, source))
            at = parents[at]
        key = tuple(reversed(stack))
        result.contexts[key] = result.contexts.get(key, 0) + own
