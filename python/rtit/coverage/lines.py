"""Coverage of lines, branches and functions of source, by the DWARF of the files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.profile.source_lines import MANY_LINES, Stretches, stretches, windows_of
from rtit.profile.tables import values

if TYPE_CHECKING:
    from rtit.coverage.gather import Code, Coverage
    from rtit.image import FileSymbols

_PART = 1 << 16
"""Lines of which the branches are looked for at once."""
_IDLE = 1 << 27
_LINE, _BRANCH = 64, 64
"""Bytes for lines and branches that did not run, and what one takes at most: two million. A
library of Rust with 24 MB has 26,000 lines.
"""


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
        lines = _joined([part.lines for part in parts])
        self._lines = _greatest(lines) if len(parts) > 1 else tuple(lines)
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
    """The files of source of all code that ran, sorted by path; code without DWARF has none. That
    some of it is not told is added to the losses.
    """
    by_path: dict[str, list[_Rows]] = {}
    room = _Room(_IDLE)
    for code in found.codes:
        lines = _Lines(code, room)
        for path, rows in lines.by_file():
            by_path.setdefault(path, []).append(rows)
        if code.symbols.lacks_lines or lines.lacks_some:
            found.losses.append(f"{code.path}: lines of source, {MANY_LINES}")
            found.has_gaps = True
    return [Source(path, by_path[path]) for path in sorted(by_path)]


class _Room:
    """For lines and branches that did not run, in bytes."""

    def __init__(self, size: int) -> None:
        self._left = size

    def keeps(self, ran: Any, size: int) -> Any:
        """Whether there is room for all rows, of so many bytes each; else for those that ran."""
        idle = int(np.count_nonzero(~ran))
        self._left -= min(idle * size, self._left + 1)
        return np.ones(len(ran), np.bool_) if self._left >= 0 else ran


class _Lines:
    """What a file of code has of lines, a part of its addresses after the other. Files and lines
    are one number in the first columns, that of the file above.
    """

    def __init__(self, code: Code, room: _Room) -> None:
        self._code, self._room = code, room
        self._numbers: dict[str, int] = {}
        self._lines, self._branches, self._functions = (_Joined(size) for size in (2, 4, 3))
        self.lacks_some = False
        code_at = [
            (start, min(start + size, (1 << 64) - 1))
            for _, start, size, _, flags in code.symbols.segments
            if flags & 1
        ]
        for part in stretches(code.symbols, code_at):
            self._add(part)
            if self.lacks_some:
                ran = windows_of(code.symbols.addresses(code.offset))
                for rest in stretches(code.symbols, ran, int(part.end[-1])):
                    self._add(rest)
                break

    def _add(self, part: Stretches) -> None:
        own = [self._numbers.setdefault(name, len(self._numbers)) for name in part.files]
        begin, inside = _offsets(self._code.symbols, part.start)
        size = part.end[inside] - part.start[inside]
        key = np.array(own, np.uint64)[part.file[inside]] << np.uint64(32)
        key |= part.line[inside]
        self._functions.add(_functions(self._code, begin, key))
        lines = _greatest([key, self._code.ran(begin)])
        kept = self._kept(lines[1] > 0, _LINE)
        self._lines.add(tuple(column[kept] for column in lines))
        for branches in _branches(self._code, begin, size, key):
            kept = self._kept((branches[2] > 0) | (branches[3] > 0), _BRANCH)
            self._branches.add(tuple(column[kept] for column in branches))

    def _kept(self, ran: Any, size: int) -> Any:
        kept = self._room.keeps(ran, size)
        self.lacks_some |= not kept.all()
        return kept

    def by_file(self) -> Iterator[tuple[str, _Rows]]:
        """Each file of source that has lines."""
        lines = _greatest(self._lines.columns())
        branches, functions = (
            _sorted(each.columns()) for each in (self._branches, self._functions)
        )
        names = list(self._numbers)
        for number in np.unique(lines[0] >> np.uint64(32)).tolist():
            own = [_of_file(columns, number) for columns in (lines, branches, functions)]
            yield names[number], _Rows(self._code.symbols, own[0], own[1], own[2])


class _Joined:
    """Columns of numbers that more come to."""

    def __init__(self, size: int) -> None:
        self._columns: list[list[Any]] = [[np.zeros(0, np.uint64)] for _ in range(size)]

    def add(self, columns: tuple[Any, ...]) -> None:
        for parts, column in zip(self._columns, columns, strict=True):
            parts.append(column)

    def columns(self) -> list[Any]:
        """All of them, once: nothing is there twice."""
        found = []
        for parts in self._columns:
            found.append(np.concatenate(parts))
            parts.clear()
        return found


def _offsets(symbols: FileSymbols, addresses: Any) -> tuple[Any, Any]:
    """File offsets of those addresses that are code of the file, and which these are."""
    offsets, inside = addresses.copy(), np.zeros(len(addresses), np.bool_)
    for offset, start, size, _, flags in symbols.segments:
        end = min(start + size, (1 << 64) - 1)
        if flags & 1 and start < end:
            new = (addresses >= np.uint64(start)) & (addresses < np.uint64(end)) & ~inside
            offsets[new] += np.uint64((offset - start) % (1 << 64))
            inside |= new
    return offsets[inside], inside


def _branches(code: Code, begin: Any, size: Any, key: Any) -> Iterator[tuple[Any, ...]]:
    """Keys, addresses, taken and passed of the conditional branches of these stretches, also of
    what did not run.
    """
    from rtit._core import conditionals

    at, done = 0, 0
    while at < len(begin):
        part = slice(at, at + _PART)
        starts, sizes = begin[part].copy(), size[part].copy()
        starts[0] += np.uint64(done)
        sizes[0] -= np.uint64(done)
        *columns, after = conditionals(
            code.space, starts.tobytes(), sizes.tobytes(), code.symbols.elf.bits
        )
        row, here, behind, target = map(np.asarray, columns)
        passed = np.where(target == behind, np.uint64(0), code.went(here, behind))
        taken, address = code.went(here, target), code.symbols.addresses(here)
        yield key[part][row], address, taken, passed
        if after is None:
            at, done = at + _PART, 0
        else:
            at, done = at + after[0], after[1] + (0 if after[0] else done)


def _functions(code: Code, begin: Any, key: Any) -> tuple[Any, ...]:
    """Keys, indices and counts of the functions that begin where lines do."""
    offsets = code.symbols.offsets
    bindings = np.frombuffer(code.symbols.bindings, np.uint8)
    order = np.argsort(begin, kind="stable")
    low = np.searchsorted(offsets, begin[order[:1]]).sum()
    index = np.arange(low, np.searchsorted(offsets, begin[order[-1:]], "right").sum())
    at = np.searchsorted(begin, offsets[index], "right", sorter=order) - 1
    starts = (at >= 0) & (bindings[index] != ord("p"))
    index, row = index[starts], order[at[starts]]
    starts = begin[row] == offsets[index]
    index, row = index[starts], row[starts]
    return key[row], index.astype(np.uint64), code.ran(offsets[index])


def _sorted(columns: list[Any]) -> tuple[Any, ...]:
    """Rows in the order of their keys, and of what follows it; the list is used up."""
    order = np.lexsort(columns[1::-1])
    return tuple(columns.pop(0)[order] for _ in range(len(columns)))


def _of_file(columns: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    """The rows of one file, with lines instead of keys; they are sorted by these."""
    borders = np.array([number << 32, number + 1 << 32], np.uint64)
    low, high = np.searchsorted(columns[0], borders)
    line = (columns[0][low:high] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return (line, *(column[low:high] for column in columns[1:]))


def _greatest(columns: list[Any]) -> tuple[Any, Any]:
    """Of rows of a key and a count, those of each key with the greatest, in order; the list is used
    up.
    """
    key, count = columns
    columns.clear()
    if not len(key):
        return key, count
    order = np.argsort(key, kind="stable")
    key, count = key[order], count[order]
    del order
    new = np.ones(len(count), np.bool_)
    new[1:] = key[1:] != key[:-1]
    return key[new], np.maximum.reduceat(count, np.flatnonzero(new))


def _joined(parts: list[tuple[Any, ...]]) -> list[Any]:
    return list(parts[0]) if len(parts) == 1 else [*map(np.concatenate, zip(*parts, strict=True))]
