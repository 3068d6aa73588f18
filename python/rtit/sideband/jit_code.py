"""Functions that came to the same addresses one after the other, sorted out.

Code that programs made while they ran, at its times among the records.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from rtit.errors import ImageError
from rtit.image import FileSymbols, Images, Problem
from rtit.image.jit import DUMP, MAP, MOST_FUNCTIONS, JitDump, read_jitdump, read_map
from rtit.image.mappings import Mapping as MappedMemory
from rtit.image.mappings import Touched

_PAGE = 4096


class Generations:
    """Of functions at `addresses`, of `sizes` bytes, taken in `order`: `is_first` of each is 1 for
    one that came to where none was before, else 0. No two of those overlap.
    """

    def __init__(
        self, addresses: Sequence[int], sizes: Sequence[int], order: Sequence[int]
    ) -> None:
        self.is_first = bytearray(b"\1") * len(addresses)
        by_address = sorted(order, key=addresses.__getitem__)
        pairs = itertools.pairwise(by_address)
        if any(addresses[one] + sizes[one] > addresses[two] for one, two in pairs):
            touched = Touched()
            for row in order:
                start = addresses[row]
                self.is_first[row] = not touched.touch(start, start + sizes[row])
        self._starts, self._ends = array("Q"), array("Q")
        for row in by_address:
            start, end = addresses[row], addresses[row] + sizes[row]
            if not self.is_first[row]:
                continue
            # between neighbours less than a page apart nothing else can be mapped
            if self._ends and start - self._ends[-1] < _PAGE:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def around(self, address: int) -> tuple[int, int]:
        """From where to where the neighbours of a first one reach, which is at `address`."""
        place = bisect_right(self._starts, address) - 1
        return self._starts[place], self._ends[place]


_MOST = 1 << 29


class _Waiting:
    """The functions of a dump that are not applied yet: those that came to where nothing was made
    before share a mapping with their neighbours, each later one has its own.

    Names of the first ones are listed by address; those of the later ones, which share addresses,
    by where the dump has their code.
    """

    def __init__(self, images: Images, dump: JitDump) -> None:
        self._images = images
        self._dump = dump
        times = dump.times if dump.in_ticks else [0] * len(dump)
        self._times = times
        self._order = sorted(range(len(dump)), key=times.__getitem__)
        self._at = 0
        self._made = Generations(dump.addresses, dump.sizes, self._order)
        self._shown: set[int] = set()
        self._paths = f"[jit-{dump.pid}.dump 2]", f"[jit-{dump.pid}.dump 1]"
        for is_first, places in enumerate((dump.places, dump.addresses)):
            rows = [row for row, each in enumerate(self._made.is_first) if each == is_first]
            if rows:
                start = min(map(places.__getitem__, rows))
                end = max(places[row] + dump.sizes[row] for row in rows)
                listed = ((places[row], dump.sizes[row], dump.names[row]) for row in rows)
                images.files.list(self._paths[is_first], FileSymbols.listed(start, end, listed))
        dump.names.clear()

    def until(self, time: int) -> None:
        while self._at < len(self._order) and self._times[self._order[self._at]] <= time:
            self._apply(self._order[self._at])
            self._at += 1

    def _apply(self, row: int) -> None:
        dump, is_first = self._dump, self._made.is_first[row]
        code = dump.code(row)
        if not code:
            return
        address = dump.addresses[row]
        start, end = address, address + len(code)
        if is_first:
            around = self._made.around(address)
            if around[0] not in self._shown:
                self._shown.add(around[0])
                start, end = around
        offset = start if is_first else dump.places[row]
        shown = MappedMemory(start, end, offset, self._paths[is_first], None, self._times[row])
        self._images.jit(dump.pid, address, code, shown)


class Jitted:
    """What jitdump files and maps of names tell of some processes. The times of a dump without
    ticks are those of another clock, often: its code is taken to be that of its end, always.
    `files` are paths, with what they are to be called.
    """

    def __init__(
        self,
        images: Images,
        files: Mapping[str, str],
        pids: Container[int],
    ) -> None:
        self._images = images
        self._names = files
        self._maps: list[tuple[int, str]] = []
        self._waiting: list[_Waiting] = []
        self._bytes, self._functions = _MOST, MOST_FUNCTIONS
        for path in files:
            name = Path(path).name
            found = DUMP.fullmatch(name) or MAP.fullmatch(name)
            if found is None or int(found[1]) not in pids:
                continue
            images.jit_files[path] = files[path]
            if MAP.fullmatch(name):
                self._maps.append((int(found[1]), path))
            else:
                self._read(path)

    def until(self, time: int) -> None:
        """All up to a time (TSC) is applied."""
        for each in self._waiting:
            each.until(time)

    def finish(self) -> None:
        """All is applied, and maps name what nothing else does."""
        self.until((1 << 64) - 1)
        self._waiting.clear()
        for pid, path in self._maps:
            try:
                rows = list(read_map(path, self._names[path]))
            except ImageError as error:
                self._lacks(path, str(error))
                continue
            if self._has_room(path, 0, len(rows)):
                self._images.named(pid, rows)

    def _read(self, path: str) -> None:
        try:
            dump = read_jitdump(path, self._names[path])
        except ImageError as error:
            self._lacks(path, str(error))
            return
        if dump.cut is not None:
            self._lacks(path, dump.cut)
        if not dump.in_ticks:
            self._lacks(path, "its times are no ticks of the TSC: code is that of its end")
        # what moves is there once more
        if self._has_room(path, sum(dump.sizes), len(dump)) and len(dump):
            self._waiting.append(_Waiting(self._images, dump))

    def _has_room(self, path: str, size: int, functions: int) -> bool:
        self._bytes -= size
        self._functions -= functions
        if self._bytes < 0:
            self._lacks(path, f"more than {_MOST:,} bytes of code that programs made")
        elif self._functions < 0:
            self._lacks(path, f"more than {MOST_FUNCTIONS:,} functions that programs made")
        return min(self._bytes, self._functions) >= 0

    def _lacks(self, path: str, message: str) -> None:
        self._images.lacks_jit(Problem("unreadable", self._names[path], message))
