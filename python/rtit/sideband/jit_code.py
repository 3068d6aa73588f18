"""JIT-compiled code: applies jitdump entries at their times, and symbol names from perf maps.

A JIT compiler reuses addresses: a later function can overlap an earlier one. `AddressReuseFinder`
finds the functions that came to unused addresses. They can share one mapping with their neighbours,
which keeps the number of mappings small; each later function needs a mapping of its own.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

from rtit.errors import ImageError
from rtit.image import FileSymbols, Images, Problem
from rtit.image.jit_files import (
    DUMP_NAME,
    MAP_NAME,
    MAX_FUNCTIONS,
    JitDump,
    read_jitdump,
    read_perf_map,
)
from rtit.image.mappings import FOREVER, MappedRanges
from rtit.image.mappings import Mapping as MemoryMapping

_PAGE = 4096
_MAX_CODE = 1 << 29
"""Bytes of JIT-compiled code in a recording."""


class AddressReuseFinder:
    """Finds the functions at addresses that no earlier function had.

    Function i is at `addresses[i]` and has `sizes[i]` bytes; `order` has the indices by time.
    `is_first[i]` is 1 for a function at unused addresses, else 0. No two such functions overlap.
    """

    def __init__(
        self, addresses: Sequence[int], sizes: Sequence[int], order: Sequence[int]
    ) -> None:
        self.is_first = bytearray(b"\1") * len(addresses)
        by_address = sorted(order, key=addresses.__getitem__)
        pairs = itertools.pairwise(by_address)
        if any(addresses[one] + sizes[one] > addresses[two] for one, two in pairs):
            used = MappedRanges()
            for index in order:
                start = addresses[index]
                self.is_first[index] = not used.add_range(start, start + sizes[index])
        self._starts, self._ends = array("Q"), array("Q")
        for index in by_address:
            start, end = addresses[index], addresses[index] + sizes[index]
            if not self.is_first[index]:
                continue
            # Neighbours less than a page apart: nothing else can be mapped between them.
            if self._ends and start - self._ends[-1] < _PAGE:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def adjacent_range_around(self, address: int) -> tuple[int, int]:
        """Return start and end of the adjacent first functions around one at `address`."""
        index = bisect_right(self._starts, address) - 1
        return self._starts[index], self._ends[index]


class _PendingJitDump:
    """The functions of a jitdump file that are not applied yet.

    Symbols of first functions are listed by address. Later functions share addresses, so their
    symbols are listed by the offset of their code in the dump.
    """

    def __init__(self, images: Images, dump: JitDump) -> None:
        self._images = images
        self._dump = dump
        times: Sequence[int] = dump.times if dump.in_ticks else [0] * len(dump)
        self._times = times
        self._order = sorted(range(len(dump)), key=times.__getitem__)
        self._next = 0
        self._reuse = AddressReuseFinder(dump.addresses, dump.sizes, self._order)
        self._mapped: set[int] = set()
        """Starts of the neighbourhoods that have a mapping."""
        self._paths = f"[jit-{dump.pid}.dump 2]", f"[jit-{dump.pid}.dump 1]"
        for is_first, starts in enumerate((dump.code_offsets, dump.addresses)):
            rows = [row for row, each in enumerate(self._reuse.is_first) if each == is_first]
            if rows:
                start = min(map(starts.__getitem__, rows))
                end = max(starts[row] + dump.sizes[row] for row in rows)
                symbols = ((starts[row], dump.sizes[row], dump.names[row]) for row in rows)
                images.files.set_symbols(
                    self._paths[is_first], FileSymbols.from_rows(start, end, symbols)
                )
        dump.names.clear()

    def apply_until(self, time: int) -> None:
        """Apply all functions up to a time; none of a dump whose times are not TSC ticks."""
        if self._dump.in_ticks:
            self._apply_until(time)

    def apply_all(self) -> None:
        """Apply the remaining functions, after all records."""
        if not self._dump.in_ticks:
            start = self._images.mappings(self._dump.pid).program_start
            self._times = [start] * len(self._dump)
        self._apply_until(FOREVER)

    def _apply_until(self, time: int) -> None:
        while self._next < len(self._order) and self._times[self._order[self._next]] <= time:
            self._map_function(self._order[self._next])
            self._next += 1

    def _map_function(self, row: int) -> None:
        dump, is_first = self._dump, self._reuse.is_first[row]
        code = dump.code_of_function(row)
        if not code:
            return
        address = dump.addresses[row]
        start, end = address, address + len(code)
        if is_first:
            neighbourhood = self._reuse.adjacent_range_around(address)
            if neighbourhood[0] not in self._mapped:
                self._mapped.add(neighbourhood[0])
                start, end = neighbourhood
        offset = start if is_first else dump.code_offsets[row]
        mapping = MemoryMapping(start, end, offset, self._paths[is_first], None, self._times[row])
        self._images.add_jit_function(dump.pid, address, code, mapping)


class JitCodeLoader:
    """Loads jitdump files (code with times) and perf maps (names only) of the processes `pids`.

    `files` maps each path to its name for messages. If a dump has times of another clock than the
    TSC, its code at the end counts for the whole recording. With `has_code` the recording has all
    code and a modelled clock: dumps are then used for names only. `find_map` returns the path of
    the perf map of a process that has none in `files`.
    """

    def __init__(
        self,
        images: Images,
        files: Mapping[str, str],
        pids: Container[int],
        *,
        has_code: bool = False,
        find_map: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self._images = images
        self._names = dict(files)
        self._has_code = has_code
        self._find_map = find_map
        self._maps: dict[int, str] = {}
        self._named: dict[int, list[tuple[int, int, str]]] = {}
        """Functions (address, size, name) of dumps without code, by pid."""
        self._pending: list[_PendingJitDump] = []
        self._bytes_left, self._functions_left = _MAX_CODE, MAX_FUNCTIONS
        for path in files:
            name = Path(path).name
            match = DUMP_NAME.fullmatch(name) or MAP_NAME.fullmatch(name)
            if match is None or int(match[1]) not in pids:
                continue
            images.jit_files[path] = files[path]
            if MAP_NAME.fullmatch(name):
                self._maps[int(match[1])] = path
            else:
                self._read_dump(path)

    def apply_until(self, time: int) -> None:
        """Apply all functions up to a time (TSC ticks)."""
        for dump in self._pending:
            dump.apply_until(time)

    def finish(self) -> None:
        """Apply the remaining functions, and the names of the perf maps."""
        for dump in self._pending:
            dump.apply_all()
        self._pending.clear()
        for pid in self._images.pids:
            rows = self._rows_of_map(pid) + self._named.pop(pid, [])
            # A compiler reuses addresses: of several functions at one address the last one counts.
            self._images.set_symbols_of_anonymous_memory(pid, rows[::-1])

    def _rows_of_map(self, pid: int) -> list[tuple[int, int, str]]:
        path = self._maps.get(pid) or self._find_map(pid)
        if path is None:
            return []
        self._images.jit_files[path] = self._names.setdefault(path, path)
        try:
            rows = list(read_perf_map(path, self._names[path]))
        except ImageError as error:
            self._report_problem(path, str(error))
            return []
        return rows if self._has_memory_for_dump(path, 0, len(rows)) else []

    def _read_dump(self, path: str) -> None:
        try:
            dump = read_jitdump(path, self._names[path])
        except ImageError as error:
            self._report_problem(path, str(error))
            return
        if dump.incomplete is not None:
            self._report_problem(path, dump.incomplete)
        if self._has_code:
            if self._has_memory_for_dump(path, 0, len(dump)):
                self._named[dump.pid] = list(
                    zip(dump.addresses, dump.sizes, dump.names, strict=True)
                )
            return
        if not dump.in_ticks:
            self._report_problem(
                path,
                "its times are not TSC ticks, so rtit uses the code from the end of the recording",
            )
        # A function that moved is counted once for each address.
        if self._has_memory_for_dump(path, sum(dump.sizes), len(dump)) and len(dump):
            self._pending.append(_PendingJitDump(self._images, dump))

    def _has_memory_for_dump(self, path: str, size: int, functions: int) -> bool:
        self._bytes_left -= size
        self._functions_left -= functions
        if self._bytes_left < 0:
            self._report_problem(path, f"more than {_MAX_CODE:,} bytes of JIT-compiled code")
        elif self._functions_left < 0:
            self._report_problem(path, f"more than {MAX_FUNCTIONS:,} JIT-compiled functions")
        return min(self._bytes_left, self._functions_left) >= 0

    def _report_problem(self, path: str, message: str) -> None:
        self._images.add_jit_problem(Problem("unreadable", self._names[path], message))
