"""Counts of many recordings, put together, or without what another has covered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rtit._core import Space
from rtit.image import FileSymbols
from rtit.profile import profile
from rtit.profile.addresses import NEAR
from rtit.profile.stretches import Stretches
from rtit.trace import End
from rtit.values import dataclass, field

if TYPE_CHECKING:
    from rtit.profile import Binary, Profile
    from rtit.trace import Stream, Trace

_Edge = tuple[int, int]
# a class that has a method of this name means that by it
_Bytes = bytes


@dataclass(slots=True)
class Code:
    """What ran of one file, by file offset. `counts` has instructions with the bytes of each,
    `sizes`; `edges` transfers within the file, (from, to), not-taken conditional branches as well;
    `blocks` stretches that ran as one: where they begin and end.
    """

    path: str
    build_id: _Bytes | None
    symbols: FileSymbols
    space: Space
    counts: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    edges: dict[_Edge, int] = field(default_factory=dict)
    blocks: set[tuple[int, int]] = field(default_factory=set)

    def bytes(self, offset: int, size: int) -> _Bytes:
        """The code at a file offset, less than `size` if there is no more."""
        return self.space.read(0, offset, size)


@dataclass(slots=True)
class Coverage:
    """All files of which code ran, in the order in which they were met; `losses`, of each recording
    that has any, in words.
    """

    codes: list[Code] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    has_gaps: bool = False
    programs: set[str] = field(default_factory=set)
    """The paths of the programs that were recorded, of all that ran."""

    def add(self, found: Profile, name: str) -> None:
        """A recording more, called `name`."""
        known = {(code.path, code.build_id): code for code in self.codes}
        if found.main is not None:
            self.programs.add(found.main.path)
        for binary in found.binaries:
            key = binary.path, binary.build_id
            if key not in known:
                known[key] = Code(*key, binary.symbols, binary.space)
                self.codes.append(known[key])
            _add(known[key], binary)
        self.losses.extend(f"{name}: {line}" for line in found.losses.lines())
        self.has_gaps |= found.losses.has_gaps

    def without(self, other: Coverage) -> Coverage:
        """What is new: instructions, edges and blocks of which nothing ran in the other."""
        old = {(code.path, code.build_id): code for code in other.codes}
        result = Coverage(losses=[*self.losses, *other.losses], programs=self.programs)
        result.has_gaps = self.has_gaps or other.has_gaps
        for code in self.codes:
            base = old.get((code.path, code.build_id))
            if base is None:
                result.codes.append(code)
                continue
            new = Code(code.path, code.build_id, code.symbols, code.space, sizes=code.sizes)
            new.counts = {at: n for at, n in code.counts.items() if at not in base.counts}
            new.edges = {edge: n for edge, n in code.edges.items() if edge not in base.edges}
            new.blocks = {each for each in code.blocks if each[0] in new.counts}
            result.codes.append(new)
        return result


def coverage(recordings: Iterable[tuple[Trace, Sequence[Stream]]]) -> Coverage:
    """Decode these streams of these recordings. Raises what decoding raises."""
    result = Coverage()
    for trace, streams in recordings:
        result.add(profile(trace, streams), trace.path)
    return result


def _add(code: Code, binary: Binary) -> None:
    columns = binary.offset.tolist(), binary.length.tolist(), binary.count.tolist()
    for offset, size, count in zip(*columns, strict=True):
        code.counts[offset] = code.counts.get(offset, 0) + count
        code.sizes[offset] = size
    within = binary.within
    rows = zip(
        within.source.tolist(),
        within.target.tolist(),
        within.kind.tolist(),
        within.count.tolist(),
        strict=True,
    )
    for source, target, kind, count in rows:
        if kind == End.CUT or kind in NEAR:
            code.edges[source, target] = code.edges.get((source, target), 0) + count
    stretches = Stretches(binary)
    ends = binary.offset + binary.length
    first, last = binary.offset[stretches.first].tolist(), ends[stretches.last].tolist()
    code.blocks.update(zip(first, last, strict=True))
