"""What ran in a function itself, by all the calls that it was called within.

Who called whom, and within whom, of all streams together.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import UnsupportedError
from rtit.image import UPPER, has_file
from rtit.image.mappings import FOREVER
from rtit.profile.builder import Function, name_at
from rtit.profile.tables import NOWHERE

if TYPE_CHECKING:
    from rtit.profile.tables import Profile
    from rtit.trace import Stream, Trace


NONE = (1 << 64) - 1
"""Stands for what there is not, in columns of native code."""


class Contexts:
    """Calls within calls, as a tree of numbers: of each context the one that it was made in, its
    call, and how many instructions the called function itself ran. A tree and no stacks: there may
    be a million, each within thousands.
    """

    def __init__(self) -> None:
        self._parents = array("q")
        self._calls = array("Q")
        self._own = array("Q")
        # in the order in which their counts were known
        self._ran = array("Q")
        # of (number of the parent + 1) << 64 | call; made for the second part
        self._numbers: dict[int, int] = {}

    def add(self, columns: Mapping[str, memoryview], calls: Sequence[int]) -> None:
        """The contexts of a stream, as `_core.calls` has them; `calls` has the numbers here of the
        calls there.
        """
        if self._calls and not self._numbers:
            known = zip(self._parents, self._calls, strict=True)
            self._numbers = {_context_key(*row): number for number, row in enumerate(known)}
        merges = bool(self._calls) or len({*calls}) < len(calls)
        here = array("q")
        rows = zip(columns["parent"], columns["call"], columns["own"], strict=True)
        for parent, call, own in rows:
            above = here[parent] if parent != NONE else -1
            number = self._number(above, calls[call], merges=merges)
            here.append(number)
            if own and not self._own[number]:
                self._ran.append(number)
            self._own[number] += own

    def _number(self, parent: int, call: int, *, merges: bool) -> int:
        number = len(self._calls)
        if merges:
            known = self._numbers.setdefault(_context_key(parent, call), number)
            if known != number:
                return known
        self._parents.append(parent)
        self._calls.append(call)
        self._own.append(0)
        return number

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Contexts in which something ran, and how many instructions."""
        return ((number, self._own[number]) for number in self._ran)

    def calls(self, context: int) -> Iterator[tuple[int, int]]:
        """A context and those that it is within, the innermost first, with the call of each."""
        while context >= 0:
            yield context, self._calls[context]
            context = self._parents[context]


def _context_key(parent: int, call: int) -> int:
    return parent + 1 << 64 | call


class Place(NamedTuple):
    """`Binary.number` and an offset in its file; NOWHERE and an address or, for what called the
    first function, 0.
    """

    binary: int
    offset: int


class Call(NamedTuple):
    """How often a place was called, and how many instructions ran until it returned; where the same
    was called again meanwhile these count once.
    """

    target: Place
    calls: int
    inclusive: int


class Calls:
    """All calls by where from and where to, in columns. `contexts`: within which others each was
    made. `outside`: the functions of places that are in no binary.
    """

    def __init__(self) -> None:
        self.contexts = Contexts()
        self.outside: dict[Place, Function] = {}
        self.source_in, self.source = array("q"), array("Q")
        self._target_in, self._target = array("q"), array("Q")
        self._count, self._inclusive = array("Q"), array("Q")
        # of what `_key` makes of the two ends
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.source)

    def ends(self, number: int) -> tuple[Place, Place]:
        """Where from and where to."""
        source = Place(self.source_in[number], self.source[number])
        return source, Place(self._target_in[number], self._target[number])

    def call(self, number: int) -> Call:
        """The call with a number."""
        target = Place(self._target_in[number], self._target[number])
        return Call(target, self._count[number], self._inclusive[number])

    def add(self, source: Place, target: Place, count: int, inclusive: int) -> int:
        """Of calls between two places: their number."""
        number = self._numbers.setdefault(_key(source, target), len(self))
        if number == len(self):
            self.source_in.append(source.binary)
            self.source.append(source.offset)
            self._target_in.append(target.binary)
            self._target.append(target.offset)
            self._count.append(0)
            self._inclusive.append(0)
        self._count[number] += count
        self._inclusive[number] += inclusive
        return number


def _key(source: Place, target: Place) -> int:
    """One number for both ends."""
    binaries = source.binary - NOWHERE << 32 | target.binary - NOWHERE
    return (binaries << 64 | source.offset) << 64 | target.offset


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
        numbers = array("Q")
        for pair, count, inclusive in zip(
            ends, columns["calls"], columns["inclusive"], strict=True
        ):
            for end in pair:
                if end.binary == NOWHERE and end.offset and end not in result.outside:
                    name = _named(trace, stream.tid, end.offset, life)
                    # many places have one name, which is kept once
                    result.outside[end] = names.setdefault(name, name)
            numbers.append(result.add(*pair, count, inclusive))
        if contexts:
            result.contexts.add(columns, numbers)
        stream.forget()
    return result


def followed(
    trace: Trace, stream: Stream, profile: Profile
) -> tuple[Iterator[tuple[Place, Place]], dict[str, memoryview]]:
    """Calls of one stream, by where from and where to, one at a time, and the columns that
    `_core.calls` gives. Those that cannot be told apart are added to the profile's losses.
    """
    from rtit import _core

    if stream.is_taken_out:
        raise UnsupportedError(
            f"{stream.title}: the kernel was traced, so that calls are those of all threads of the "
            "CPU: without --tid, --pid and --comm"
        )
    numbers = {(each.path, each.build_id): each.number for each in profile.binaries}
    regions = sorted(trace.images.mappings(stream.tid), key=lambda each: each.start)
    losses = profile.losses
    # with the names that it has here a pair takes as much as two places
    losses.pairs = stream.places // 2
    found = _core.calls(stream.native(), trace.symbols.names(stream.tid), losses.pairs)
    # no lists: there may be a million calls
    columns = {name: memoryview(column) for name, column in found.items()}
    losses.calls += columns["beyond"][0]
    losses.calls_between += columns["between"][0]

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
    return ((place(*row[:2]), place(*row[2:])) for row in rows), columns


def _named(trace: Trace, tid: int, address: int, since: int) -> Function:
    """The last that was there, if something was."""
    there = [
        each.until
        for each in trace.images.mappings(tid)
        if each.start <= address < each.end and each.until > since
    ]
    return name_at(trace, tid, address, max(there, default=FOREVER) - 1)
