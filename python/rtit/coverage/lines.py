"""Coverage of lines, branches and functions of source, by the DWARF of the files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.profile.columns import values
from rtit.profile.lines import SourceLines
from rtit.values import dataclass

if TYPE_CHECKING:
    from rtit.coverage.gather import Code, Coverage
    from rtit.image import FileSymbols

_PART = 1 << 16
"""Lines of which the branches are looked for at once."""


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


class _Rows(NamedTuple):
    """Of one file of code: lines and counts; lines, addresses, taken and passed of branches;
    lines, indices and counts of functions. Each in the order of lines.
    """

    symbols: FileSymbols
    lines: tuple[Any, ...]
    branches: tuple[Any, ...]
    functions: tuple[Any, ...]


class Source:
    """A file of source: the lines that have code, its branches and functions. A line ran as often
    as the most frequent of the places where its code begins.
    """

    def __init__(self, path: str, parts: list[_Rows]) -> None:
        self.path = path
        self._lines = _greatest(*_joined([part.lines for part in parts]))
        branches = _joined([part.branches for part in parts])
        if len(parts) > 1:
            order = np.lexsort(branches[1::-1])
            branches = [column[order] for column in branches]
        self._branches = branches
        self._functions = [(part.symbols, part.functions) for part in parts]

    def each_line(self) -> Iterator[tuple[int, int]]:
        """Lines in order, and how often each ran."""
        return values(self._lines)

    def each_branch(self) -> Iterator[Branch]:
        """Branches in the order of lines, those of a line in that of addresses."""
        for line, address, taken, passed in values(self._branches):
            yield Branch(address, line, taken, passed)

    def each_line_with_branches(self) -> Iterator[tuple[int, int, list[Branch]]]:
        """As `each_line`, with the branches of each."""
        groups = groupby(self.each_branch(), lambda each: each.line)
        branched, branches = next(groups, (0, iter(())))
        for line, count in self.each_line():
            if line != branched:
                yield line, count, []
                continue
            yield line, count, list(branches)
            branched, branches = next(groups, (0, iter(())))

    @property
    def lines(self) -> dict[int, int]:
        """How often each line ran."""
        return dict(self.each_line())

    @property
    def branches(self) -> list[Branch]:
        """All of `each_branch`."""
        return list(self.each_branch())

    @property
    def functions(self) -> list[Function]:
        """In the order of lines and names."""
        from rtit._core import demangle

        found = [
            Function(demangle(symbols.name(index)), line, count)
            for symbols, columns in self._functions
            for line, index, count in values(columns)
        ]
        return sorted(found, key=lambda each: (each.line, each.name))

    @property
    def lines_found(self) -> int:
        """Lines that have code."""
        return len(self._lines[0])

    @property
    def covered(self) -> int:
        """Lines that ran."""
        return int(np.count_nonzero(self._lines[1]))

    @property
    def ways_found(self) -> int:
        """Ways out of branches."""
        return 2 * len(self._branches[0])

    @property
    def ways(self) -> int:
        """Ways out of branches that were gone."""
        return sum(int(np.count_nonzero(column)) for column in self._branches[2:])


def sources(found: Coverage) -> list[Source]:
    """The files of source of all code that ran, sorted by path; code without DWARF has none."""
    by_path: dict[str, list[_Rows]] = {}
    for code in found.codes:
        for path, rows in _of(code):
            by_path.setdefault(path, []).append(rows)
    return [Source(path, by_path[path]) for path in sorted(by_path)]


def _of(code: Code) -> Iterator[tuple[str, _Rows]]:
    lines = SourceLines(code.symbols)
    begin, inside = _offsets(code.symbols, lines.start)
    size = lines.end[inside] - lines.start[inside]
    file, line = lines.file[inside], lines.line[inside]
    names = lines.files
    del lines, inside
    branches = _sorted(_branches(code, begin, size, file, line))
    del size
    functions = _sorted(_functions(code, begin, file, line))
    rows = _sorted((file, line, code.ran(begin)))
    del begin, file, line
    rows = _greatest(*rows)
    for number in np.unique(rows[0]).tolist():
        own = [_of_file(columns, number) for columns in (rows, branches, functions)]
        yield names[number], _Rows(code.symbols, own[0], own[1], own[2])


def _offsets(symbols: FileSymbols, addresses: Any) -> tuple[Any, Any]:
    """File offsets of those addresses that are code of the file, and which these are."""
    offsets, inside = addresses.copy(), np.zeros(len(addresses), np.bool_)
    for offset, start, size, _, flags in symbols.elf.segments:
        end = min(start + size, (1 << 64) - 1)
        if flags & 1 and start < end:
            new = (addresses >= np.uint64(start)) & (addresses < np.uint64(end)) & ~inside
            offsets[new] += np.uint64((offset - start) % (1 << 64))
            inside |= new
    return offsets[inside], inside


def _branches(code: Code, begin: Any, size: Any, file: Any, line: Any) -> tuple[Any, ...]:
    """Files, lines, addresses, taken and passed of the conditional branches of these stretches,
    also of what did not run.
    """
    from rtit._core import conditionals

    found = []
    for at in range(0, len(begin), _PART):
        part = slice(at, at + _PART)
        starts, sizes = begin[part].tobytes(), size[part].tobytes()
        columns = conditionals(code.space, starts, sizes, code.symbols.elf.bits)
        row, here, behind, target = map(np.asarray, columns)
        passed = np.where(target == behind, np.uint64(0), code.went(here, behind))
        taken, address = code.went(here, target), code.symbols.addresses(here)
        found.append((file[part][row], line[part][row], address, taken, passed))
    return tuple(_joined(found)) if found else (file, line, begin, begin, begin)


def _functions(code: Code, begin: Any, file: Any, line: Any) -> tuple[Any, ...]:
    """Files, lines, indices and counts of the functions that begin where lines do."""
    offsets = code.symbols.offsets
    bindings = np.frombuffer(code.symbols.bindings, np.uint8)
    order = np.argsort(begin, kind="stable")
    at = np.searchsorted(begin, offsets, "right", sorter=order) - 1
    index = np.flatnonzero((at >= 0) & (bindings != ord("p")))
    index = index[begin[order[at[index]]] == offsets[index]]
    row = order[at[index]]
    return file[row], line[row], index, code.ran(offsets[index])


def _sorted(columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """Rows in the order of files and lines, and of addresses, if they have some."""
    order = np.lexsort(columns[2::-1] if len(columns) > 4 else columns[1::-1])
    return tuple(column[order] for column in columns)


def _of_file(columns: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    """The rows of one file, without its number; they are sorted by it."""
    low, high = np.searchsorted(columns[0], np.array([number, number + 1], columns[0].dtype))
    return tuple(column[low:high] for column in columns[1:])


def _greatest(*columns: Any) -> tuple[Any, ...]:
    """Of rows that differ in the last column alone that with the greatest; sorted by the others."""
    *keys, count = columns
    if not len(count):
        return columns
    order = np.lexsort(keys[::-1])
    keys = [key[order] for key in keys]
    new = np.ones(len(count), np.bool_)
    new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first = np.flatnonzero(new)
    return (*(key[first] for key in keys), np.maximum.reduceat(count[order], first))


def _joined(parts: list[tuple[Any, ...]]) -> list[Any]:
    return list(parts[0]) if len(parts) == 1 else [*map(np.concatenate, zip(*parts, strict=True))]
