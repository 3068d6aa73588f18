"""Coverage of lines, branches and functions of source, by the DWARF of the files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rtit.profile.lines import SourceLines
from rtit.values import dataclass, field
from rtit.x86 import Class

if TYPE_CHECKING:
    from rtit.coverage.gather import Code, Coverage
    from rtit.image import FileSymbols

_LONGEST = 15


@dataclass(frozen=True, slots=True)
class Branch:
    """A conditional branch instruction of a line: how often it was taken, and how often not."""

    address: int
    line: int
    taken: int
    passed: int

    @property
    def ran(self) -> bool:
        """Whether it ran at all."""
        return bool(self.taken or self.passed)


@dataclass(frozen=True, slots=True)
class Function:
    """A function, by its readable name, its first line, and how often that began."""

    name: str
    line: int
    count: int


@dataclass(slots=True)
class Source:
    """A file of source. `lines`: how often each that has code ran, which is how often the most
    frequent of the places did where its code begins.
    """

    path: str
    lines: dict[int, int] = field(default_factory=dict)
    branches: list[Branch] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)

    @property
    def covered(self) -> int:
        """Lines that ran."""
        return sum(count > 0 for count in self.lines.values())

    @property
    def ways(self) -> int:
        """Ways out of branches that were gone."""
        return sum((each.taken > 0) + (each.passed > 0) for each in self.branches)


def sources(found: Coverage) -> list[Source]:
    """The files of source of all code that ran, sorted by path; code without DWARF has none."""
    by_path: dict[str, Source] = {}
    for code in found.codes:
        _add(code, by_path)
    for source in by_path.values():
        source.branches.sort(key=lambda each: (each.line, each.address))
        source.functions.sort(key=lambda each: (each.line, each.name))
    return [by_path[path] for path in sorted(by_path)]


def _add(code: Code, by_path: dict[str, Source]) -> None:
    from rtit._core import demangle

    lines = SourceLines(code.symbols)
    columns = (lines.start, lines.end, lines.file, lines.line)
    offsets = _Offsets(code.symbols)
    entries: dict[int, tuple[Source, int]] = {}
    starts: list[int] = []
    for start, end, file, line in zip(*(column.tolist() for column in columns), strict=True):
        begin = offsets.of(start)
        if begin is None:
            continue
        source = by_path.setdefault(lines.files[file], Source(lines.files[file]))
        count = code.counts.get(begin, 0)
        source.lines[line] = max(source.lines.get(line, 0), count)
        entries[begin] = source, line
        starts.append(begin)
        source.branches.extend(_branches(code, begin, end - start, line))
    starts.sort()
    for function in code.symbols.functions:
        at = bisect_right(starts, function.offset) - 1
        if at < 0 or starts[at] != function.offset or function.binding == "p":
            continue
        source, line = entries[function.offset]
        name = demangle(function.name)
        source.functions.append(Function(name, line, code.counts.get(function.offset, 0)))


class _Offsets:
    """File offsets of addresses."""

    def __init__(self, symbols: FileSymbols) -> None:
        self._segments = [row for row in symbols.elf.segments if row[4] & 1]

    def of(self, address: int) -> int | None:
        for offset, start, size, *_ in self._segments:
            if start <= address < start + size:
                return address - start + offset
        return None


def _branches(code: Code, begin: int, size: int, line: int) -> Iterator[Branch]:
    """The conditional branches of `size` bytes of code, also of what did not run."""
    from rtit._core import decode_instruction

    data = code.bytes(begin, size + _LONGEST)
    at = 0
    while at < size:
        try:
            length, kind, target, _ = decode_instruction(data[at : at + _LONGEST], begin + at)
        except ValueError:
            return
        if kind == Class.CONDITIONAL:
            behind = begin + at + length
            taken = code.edges.get((begin + at, target), 0)
            passed = code.edges.get((begin + at, behind), 0) if target != behind else 0
            yield Branch(code.symbols.address(begin + at), line, taken, passed)
        at += length
