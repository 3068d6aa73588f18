"""Who called whom, and within whom, of all streams together."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import UnsupportedError
from rtit.image import UPPER, has_file
from rtit.image.mappings import FOREVER
from rtit.profile.contexts import NONE, Contexts
from rtit.profile.outside import Function, name_at
from rtit.profile.table import NOWHERE
from rtit.values import dataclass, field

if TYPE_CHECKING:
    from rtit.profile.table import Profile
    from rtit.trace import Stream, Trace


class Place(NamedTuple):
    """`Binary.number` and an offset in its file; NOWHERE and an address or, for what called the
    first function, 0.
    """

    binary: int
    offset: int


@dataclass(slots=True)
class Call:
    """How often, and how many instructions ran until it returned; where the same was called again
    meanwhile these count once. `number` is its place among all.
    """

    number: int
    count: int = 0
    inclusive: int = 0


@dataclass(slots=True)
class Calls:
    """`by_ends`: all calls by where from and where to, in the order of their numbers. `contexts`:
    within which others each was made. `outside`: the functions of places that are in no binary.
    """

    by_ends: dict[tuple[Place, Place], Call] = field(default_factory=dict)
    contexts: Contexts = field(default_factory=Contexts)
    outside: dict[Place, Function] = field(default_factory=dict)


def calls(
    trace: Trace, streams: Sequence[Stream], profile: Profile, *, contexts: bool = False
) -> Calls:
    """Decode the streams once more, in order, and follow calls and returns. Raises UnsupportedError
    for one thread of several where the kernel was traced, too.
    """
    result = Calls()
    names: dict[Function, Function] = {}
    for stream in streams:
        ends, columns = followed(trace, stream, profile)
        life = trace.images.mappings(stream.tid).life
        for end in (end for pair in ends for end in pair if end.binary == NOWHERE):
            if end not in result.outside and end.offset:
                name = _named(trace, stream.tid, end.offset, life)
                # many places have one name, which is kept once
                result.outside[end] = names.setdefault(name, name)
        numbers = array("Q")
        for key, count, inclusive in zip(ends, columns["calls"], columns["inclusive"], strict=True):
            call = result.by_ends.setdefault(key, Call(len(result.by_ends)))
            call.count += count
            call.inclusive += inclusive
            numbers.append(call.number)
        del ends
        if contexts:
            result.contexts.add(columns, numbers)
        stream.forget()
    return result


def followed(
    trace: Trace, stream: Stream, profile: Profile
) -> tuple[list[tuple[Place, Place]], dict[str, memoryview]]:
    """Calls of one stream, by where from and where to, and the columns that `_core.calls` gives.
    Those that cannot be told apart are added to the profile's losses.
    """
    from rtit import _core

    if stream.is_taken_out:
        raise UnsupportedError(
            f"{stream.title}: the kernel was traced, so that calls are those of all threads of the "
            "CPU: without --tid, --pid and --comm"
        )
    numbers = {(each.path, each.build_id): each.number for each in profile.binaries}
    regions = sorted(trace.images.mappings(stream.tid), key=lambda each: each.start)
    found = _core.calls(stream.native(), trace.symbols.names(stream.tid))
    # no lists: there may be a million calls
    columns = {name: memoryview(column) for name, column in found.items()}
    profile.losses.calls += columns["beyond"][0]

    def place(region: int, offset: int) -> Place:
        if region == NONE:
            return Place(NOWHERE, offset)
        mapping = regions[region]
        if not has_file(mapping.path) or mapping.start >= UPPER:
            return Place(NOWHERE, offset - mapping.offset + mapping.start)
        symbols = trace.images.files.symbols(mapping.path, mapping.build_id)
        build_id = mapping.build_id or (symbols.elf.build_id if symbols else None)
        return Place(numbers.get((mapping.path, build_id), NOWHERE), offset)

    names = ("from_region", "from_offset", "to_region", "to_offset")
    rows = zip(*(columns[name] for name in names), strict=True)
    return [(place(*row[:2]), place(*row[2:])) for row in rows], columns


def _named(trace: Trace, tid: int, address: int, since: int) -> Function:
    """The last that was there, if something was."""
    there = [
        each.until
        for each in trace.images.mappings(tid)
        if each.start <= address < each.end and each.until > since
    ]
    return name_at(trace, tid, address, max(there, default=FOREVER) - 1)
