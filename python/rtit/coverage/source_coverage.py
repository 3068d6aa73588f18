"""Coverage of source lines, branches and functions, by the DWARF of the files.

Line tables are read in chunks of addresses. Lines and branches that did not run are bounded by a
memory budget; those that ran are all kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.image import function_of_cold_part
from rtit.image.inlined_calls import FunctionIndex, InlinedCalls
from rtit.image.source_lines import TOO_MANY_LINES, LineRanges, address_windows, line_ranges
from rtit.profile.tables import iterate_rows

if TYPE_CHECKING:
    from rtit.coverage.file_coverage import Coverage, FileCoverage
    from rtit.image import FileSymbols

_LINES_AT_ONCE = 1 << 16
"""Line ranges that are searched for branches at a time."""
_UNEXECUTED_BYTES = 1 << 27
_BYTES_PER_LINE, _BYTES_PER_BRANCH = 64, 64
"""Memory of a line and of a branch that did not run: the budget holds two million. A Rust library
of 24 MB has 26,000 lines.
"""


@dataclass(frozen=True, slots=True)
class BranchCoverage:
    """A conditional branch instruction: how often it was taken, and how often not."""

    address: int
    line: int
    taken: int
    not_taken: int

    @property
    def was_executed(self) -> bool:
        """Whether the instruction ran."""
        return bool(self.taken or self.not_taken)


@dataclass(frozen=True, slots=True)
class FunctionCoverage:
    """A function: its demangled name, its first line, and how often its first instruction ran."""

    name: str
    line: int
    count: int


class _SourceRows(NamedTuple):
    """Lines, branches and functions of one file of code in one source file, sorted by line.

    Columns: line, count; line, address, taken, not taken; line, index, count.
    """

    symbols: FileSymbols
    lines: tuple[Any, ...]
    branches: tuple[Any, ...]
    functions: tuple[Any, ...]


class SourceFile:
    """A source file: its lines with code, branches and functions.

    A line can have several copies: in instances of templates, and where a function is inlined. The
    count of a line is the sum over its copies, each with the count of its most frequent first
    instruction. (gcov counts so: it adds up instances, and counts before functions are inlined.)
    """

    def __init__(self, path: str, parts: list[_SourceRows]) -> None:
        self.path = path
        lines = _concatenate_columns([part.lines for part in parts])
        self._lines = tuple(_reduce_by_key(np.add, lines)) if len(parts) > 1 else tuple(lines)
        branches = _concatenate_columns([part.branches for part in parts])
        if len(parts) > 1:
            order = np.lexsort(branches[1::-1])
            branches = [column[order] for column in branches]
        self._branches = branches
        self._functions = [(part.symbols, part.functions) for part in parts]

    def iterate_lines(self) -> Iterator[tuple[int, int]]:
        """Iterate over lines and their counts, in order."""
        return iterate_rows(self._lines)

    def iterate_branches(self) -> Iterator[BranchCoverage]:
        """Iterate over branches, by line and address."""
        for line, address, taken, not_taken in iterate_rows(self._branches):
            yield BranchCoverage(address, line, taken, not_taken)

    def iterate_lines_with_branches(self) -> Iterator[tuple[int, int, list[BranchCoverage]]]:
        """Iterate over lines, their counts and their branches."""
        groups = groupby(self.iterate_branches(), lambda each: each.line)
        branched, branches = next(groups, (0, iter(())))
        for line, count in self.iterate_lines():
            if line != branched:
                yield line, count, []
                continue
            yield line, count, list(branches)
            branched, branches = next(groups, (0, iter(())))

    @property
    def lines(self) -> dict[int, int]:
        """Count of each line."""
        return dict(self.iterate_lines())

    @property
    def branches(self) -> list[BranchCoverage]:
        """All branches, by line and address."""
        return list(self.iterate_branches())

    @property
    def functions(self) -> list[FunctionCoverage]:
        """All functions, by line and name. Symbols of one name at one address, as of a C++
        constructor, are one function.
        """
        from rtit._core import demangle

        found = []
        for symbols, columns in self._functions:
            known = set()
            for line, index, count in iterate_rows(columns):
                name, offset = demangle(symbols.name(index)), int(symbols.offsets[index])
                if (name, offset) not in known:
                    known.add((name, offset))
                    found.append(FunctionCoverage(name, line, count))
        return sorted(found, key=lambda each: (each.line, each.name))

    @property
    def line_count(self) -> int:
        """Number of lines with code."""
        return len(self._lines[0])

    @property
    def lines_hit(self) -> int:
        """Number of lines that ran."""
        return int(np.count_nonzero(self._lines[1]))

    @property
    def outcome_count(self) -> int:
        """Number of branch outcomes: two per branch."""
        return 2 * len(self._branches[0])

    @property
    def outcomes_hit(self) -> int:
        """Number of branch outcomes that occurred."""
        return sum(int(np.count_nonzero(column)) for column in self._branches[2:])


class FolderTotals(NamedTuple):
    """The lines and branch outcomes of all source files in a folder and its subfolders."""

    path: str
    lines_hit: int
    line_count: int
    outcomes_hit: int
    outcome_count: int


def folder_totals(sources: Iterable[SourceFile]) -> list[FolderTotals]:
    """Return the totals of each folder, sorted by path.

    A folder without source files of its own and with a single subfolder is left out.
    """
    totals: dict[PurePath, list[int]] = {}
    entries: dict[PurePath, set[PurePath]] = {}
    for source in sources:
        counts = source.lines_hit, source.line_count, source.outcomes_hit, source.outcome_count
        path = PurePath(source.path)
        for parent, entry in zip(path.parents, (path, *path.parents), strict=False):
            entries.setdefault(parent, set()).add(entry)
            sums = totals.get(parent, (0, 0, 0, 0))
            totals[parent] = [*map(sum, zip(sums, counts, strict=True))]
    folders = (
        each for each, inside in entries.items() if len(inside) > 1 or not inside & totals.keys()
    )
    return [FolderTotals(str(path), *totals[path]) for path in sorted(folders)]


def source_files(found: Coverage) -> list[SourceFile]:
    """Return the source files of the code, sorted by path. Code without DWARF has none.

    Adds to the losses if lines had to be left out.
    """
    by_path: dict[str, list[_SourceRows]] = {}
    budget = _MemoryBudget(_UNEXECUTED_BYTES)
    for code in found.files:
        lines = _LineCollector(code, budget)
        for path, rows in lines.by_file():
            by_path.setdefault(path, []).append(rows)
        if code.symbols.has_incomplete_lines or lines.is_truncated:
            found.losses.append(f"{code.path}: source lines: {TOO_MANY_LINES}")
            found.has_gaps = True
    return [SourceFile(path, by_path[path]) for path in sorted(by_path)]


class _MemoryBudget:
    """Memory for lines and branches that did not run, in bytes."""

    def __init__(self, size: int) -> None:
        self._left = size

    def rows_to_keep(self, executed: Any, size: int) -> Any:
        """Return a mask of all rows if the budget allows them, else of those that ran."""
        unexecuted = int(np.count_nonzero(~executed))
        self._left -= min(unexecuted * size, self._left + 1)
        return np.ones(len(executed), np.bool_) if self._left >= 0 else executed


class _LineCollector:
    """Lines, branches and functions of a file of code, collected in chunks.

    The first column is a key: the number of the source file in the upper 32 bits, the line below.
    The second of lines is the number of the copy.
    """

    def __init__(self, code: FileCoverage, budget: _MemoryBudget) -> None:
        self._code, self._budget = code, budget
        self._numbers: dict[str, int] = {}
        self._lines, self._branches, self._functions = (_ColumnList(size) for size in (3, 4, 3))
        self.is_truncated = False
        self._copies = _copies_of_instructions(code)
        code_at = [
            (start, min(start + size, (1 << 64) - 1))
            for _, start, size, _, flags in code.symbols.segments
            if flags & 1
        ]
        for part in line_ranges(code.symbols, code_at):
            self._add_line_ranges(part)
            if self.is_truncated:
                windows = address_windows(code.symbols.addresses(code.offset))
                for rest in line_ranges(code.symbols, windows, int(part.end[-1])):
                    self._add_line_ranges(rest)
                break

    def _add_line_ranges(self, part: LineRanges) -> None:
        numbers = [self._numbers.setdefault(name, len(self._numbers)) for name in part.files]
        starts, in_code = _offsets_of_addresses(self._code.symbols, part.start)
        size = part.end[in_code] - part.start[in_code]
        key = np.array(numbers, np.uint64)[part.file[in_code]] << np.uint64(32)
        key |= part.line[in_code]
        self._functions.append_chunk(_count_function_starts(self._code, starts, key))
        counts = self._code.execution_counts(starts)
        copies = np.zeros(len(starts), np.uint64)
        executed = np.flatnonzero(counts)
        copies[executed] = self._copies[np.searchsorted(self._code.offset, starts[executed])]
        lines = _reduce_by_key(np.maximum, [key, copies, counts])
        kept = self._keep_rows(lines[2] > 0, _BYTES_PER_LINE)
        self._lines.append_chunk(tuple(column[kept] for column in lines))
        for branches in _count_conditional_branches(self._code, starts, size, key):
            kept = self._keep_rows((branches[2] > 0) | (branches[3] > 0), _BYTES_PER_BRANCH)
            self._branches.append_chunk(tuple(column[kept] for column in branches))

    def _keep_rows(self, executed: Any, size: int) -> Any:
        kept = self._budget.rows_to_keep(executed, size)
        self.is_truncated |= not kept.all()
        return kept

    def by_file(self) -> Iterator[tuple[str, _SourceRows]]:
        """Iterate over source files with their rows."""
        key, _, count = _reduce_by_key(np.maximum, self._lines.take_columns())
        lines = tuple(_reduce_by_key(np.add, [key, count]))
        del key, count
        branches, functions = (
            _take_sorted_rows(each.take_columns()) for each in (self._branches, self._functions)
        )
        names = list(self._numbers)
        for number in np.unique(lines[0] >> np.uint64(32)).tolist():
            rows = [_rows_of_file(columns, number) for columns in (lines, branches, functions)]
            yield names[number], _SourceRows(self._code.symbols, rows[0], rows[1], rows[2])


def _copies_of_instructions(code: FileCoverage) -> Any:
    """Return for each instruction that ran the number of the copy of its source code: one for each
    function and each inlined call.
    """
    symbols = code.symbols
    owners = FunctionIndex(symbols).find_functions(code.offset)
    names = {owner: symbols.name(owner) for owner in np.unique(owners).tolist() if owner >= 0}
    by_name = {name: owner for owner, name in names.items()}
    for owner, name in names.items():
        whole = function_of_cold_part(name)
        if whole in by_name:
            owners[owners == owner] = by_name[whole]
    inlined = InlinedCalls(symbols, code.offset).innermost
    # from 0 for instructions of no function
    owners = (owners + 1).astype(np.uint64)
    return owners << np.uint64(32) | (inlined + 1).astype(np.uint64)


class _ColumnList:
    """Columns that are collected in chunks."""

    def __init__(self, size: int) -> None:
        self._columns: list[list[Any]] = [[np.zeros(0, np.uint64)] for _ in range(size)]

    def append_chunk(self, columns: tuple[Any, ...]) -> None:
        for parts, column in zip(self._columns, columns, strict=True):
            parts.append(column)

    def take_columns(self) -> list[Any]:
        """Return the columns, and release the chunks."""
        found = []
        for parts in self._columns:
            found.append(np.concatenate(parts))
            parts.clear()
        return found


def _offsets_of_addresses(symbols: FileSymbols, addresses: Any) -> tuple[Any, Any]:
    """Return the file offsets of addresses that are code of the file, and the mask of these
    addresses.
    """
    offsets, in_code = addresses.copy(), np.zeros(len(addresses), np.bool_)
    for offset, start, size, _, flags in symbols.segments:
        end = min(start + size, (1 << 64) - 1)
        if flags & 1 and start < end:
            new = (addresses >= np.uint64(start)) & (addresses < np.uint64(end)) & ~in_code
            offsets[new] += np.uint64((offset - start) % (1 << 64))
            in_code |= new
    return offsets[in_code], in_code


def _count_conditional_branches(
    code: FileCoverage, range_starts: Any, range_sizes: Any, key: Any
) -> Iterator[tuple[Any, ...]]:
    """Iterate over keys, addresses, taken and not-taken counts of conditional branches in these
    ranges.

    Includes branches that did not run.
    """
    from rtit._core import conditional_branches

    at, done = 0, 0
    while at < len(range_starts):
        part = slice(at, at + _LINES_AT_ONCE)
        starts, sizes = range_starts[part].copy(), range_sizes[part].copy()
        starts[0] += np.uint64(done)
        sizes[0] -= np.uint64(done)
        *columns, after = conditional_branches(code.space, starts, sizes, code.symbols.elf.bits)
        row, here, following, target = map(np.asarray, columns)
        not_taken = np.where(
            target == following, np.uint64(0), code.transfer_counts(here, following)
        )
        taken, address = code.transfer_counts(here, target), code.symbols.addresses(here)
        yield key[part][row], address, taken, not_taken
        if after is None:
            at, done = at + _LINES_AT_ONCE, 0
        else:
            at, done = at + after[0], after[1] + (0 if after[0] else done)


def _count_function_starts(code: FileCoverage, line_starts: Any, key: Any) -> tuple[Any, ...]:
    """Return keys, symbol indices and counts of functions that start where a line starts."""
    offsets = code.symbols.offsets
    bindings = np.frombuffer(code.symbols.bindings, np.uint8)
    order = np.argsort(line_starts, kind="stable")
    low = np.searchsorted(offsets, line_starts[order[:1]]).sum()
    index = np.arange(low, np.searchsorted(offsets, line_starts[order[-1:]], "right").sum())
    at = np.searchsorted(line_starts, offsets[index], "right", sorter=order) - 1
    starts = (at >= 0) & (bindings[index] != ord("p"))
    index, row = index[starts], order[at[starts]]
    starts = line_starts[row] == offsets[index]
    index, row = index[starts], row[starts]
    return key[row], index.astype(np.uint64), code.execution_counts(offsets[index])


def _take_sorted_rows(columns: list[Any]) -> tuple[Any, ...]:
    """Return rows sorted by the first two columns. Empties the list."""
    order = np.lexsort(columns[1::-1])
    return tuple(columns.pop(0)[order] for _ in range(len(columns)))


def _rows_of_file(columns: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    """Return the rows of one source file, with lines in place of keys."""
    borders = np.array([number << 32, number + 1 << 32], np.uint64)
    low, high = np.searchsorted(columns[0], borders)
    line = (columns[0][low:high] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return (line, *(column[low:high] for column in columns[1:]))


def _reduce_by_key(reduce: np.ufunc, columns: list[Any]) -> list[Any]:
    """Return one row for equal rows of all columns but the last, sorted, with the sum or maximum of
    the last. Empties the list.
    """
    *keys, count = columns
    columns.clear()
    if not len(count):
        return [*keys, count]
    order = np.lexsort(keys[::-1])
    keys, count = [key[order] for key in keys], count[order]
    del order
    new = np.arange(len(count)) == 0
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return [*(key[new] for key in keys), reduce.reduceat(count, np.flatnonzero(new))]


def _concatenate_columns(parts: list[tuple[Any, ...]]) -> list[Any]:
    return list(parts[0]) if len(parts) == 1 else [*map(np.concatenate, zip(*parts, strict=True))]
