"""Where the code is that a selection names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from rtit.errors import UsageError
from rtit.image import FileSymbols, Images, Mapping
from rtit.readable import as_text
from rtit.trace.selection import LATEST, Selection


class Place(NamedTuple):
    """Addresses from `start` up to `end`, from time `since` up to `until` (TSC)."""

    start: int
    end: int
    since: int = 0
    until: int = LATEST


class Places:
    """The ranges and functions of a selection, process by process.

    A function is named as it is printed, or as its file spells it (C++ and Rust); `@FILE` behind
    the name takes that of one file only, a path or its last part. A file alone stands for what in
    it belongs to no function, as it does in a report.
    """

    def __init__(self, selection: Selection, images: Images) -> None:
        self._selection = selection
        self._images = images
        self._offsets: dict[tuple[str, str, bytes | None], list[tuple[int, int]]] = {}

    def of(self, *pids: int) -> list[Place] | None:
        """Those in any of some processes, sorted; they may overlap. None if the selection has
        neither ranges nor functions: then all places are wanted. A function that is not there adds
        nothing: see `check`.
        """
        if not self._selection.ranges and not self._selection.functions:
            return None
        found = {Place(start, end) for start, end in self._selection.ranges}
        for mapping in (each for pid in pids for each in self._images.mappings(pid)):
            for name in self._selection.functions:
                found.update(self._in_mapping(name, mapping))
        return sorted(found)

    def by_space(self, pids: Sequence[int]) -> tuple[list[Place], ...] | None:
        """As `of`, of each process by itself."""
        found = [each for pid in pids if (each := self.of(pid)) is not None]
        return tuple(found) if len(found) == len(pids) else None

    def check(self, pids: Iterable[int]) -> None:
        """Raises UsageError for a function that is nowhere in these processes; it lists names near
        it.
        """
        mappings = [mapping for pid in pids for mapping in self._images.mappings(pid)]
        for name in self._selection.functions:
            if any(True for mapping in mappings for _ in self._in_mapping(name, mapping)):
                continue
            files = {(each.path, each.build_id): each for each in mappings}
            known = {each for mapping in files.values() for each in self._names(mapping)}
            import difflib

            near = difflib.get_close_matches(as_text(name), known, n=5, cutoff=0.5)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise UsageError(f"--function {name}: nothing that was mapped has it{hint}")

    def _in_mapping(self, name: str, mapping: Mapping) -> Iterator[Place]:
        key = (name, mapping.path, mapping.build_id)
        if key not in self._offsets:
            self._offsets[key] = list(_offsets(name, mapping.path, self._symbols(mapping)))
        size = mapping.end - mapping.start
        for start, end in self._offsets[key]:
            low, high = max(start - mapping.offset, 0), min(end - mapping.offset, size)
            if low < high:
                base = mapping.start
                yield Place(base + low, base + high, mapping.since, mapping.until)

    def _symbols(self, mapping: Mapping) -> FileSymbols | None:
        return self._images.files.symbols(mapping.path, mapping.build_id)

    def _names(self, mapping: Mapping) -> Iterator[str]:
        symbols = self._symbols(mapping)
        if symbols is not None:
            yield from map(_readable, symbols.names)


def _offsets(name: str, path: str, symbols: FileSymbols | None) -> Iterator[tuple[int, int]]:
    """Ranges of a file's offsets that belong to a name."""
    bare, at, file = name.rpartition("@")
    names = set(map(as_text, (name, bare) if at and _is_file(file, path) else (name,)))
    behind = 0
    if symbols is not None:
        functions = symbols.functions
        # One that has several names is there once, under the best.
        wanted = {
            each.offset for each in functions if each.name in names or _readable(each.name) in names
        }
        for start, end, owner in zip(*symbols.pieces, strict=True):
            if functions[owner].offset in wanted:
                yield start, end
            if _is_file(name, path) and behind < start:
                yield behind, start
            behind = max(behind, end)
    if _is_file(name, path):
        yield behind, LATEST


def _is_file(name: str, path: str) -> bool:
    return bool(name) and name in (path, PurePath(path).name)


def _readable(name: str) -> str:
    from rtit._core import demangle

    return demangle(name)
