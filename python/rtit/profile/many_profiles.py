"""Profiles of many recordings: sent between processes, and added up.

A process that builds a profile for another sends it without symbols and code (`detach_files`). The
receiver reads these once for each file (`SharedFiles`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.errors import ImageError
from rtit.profile.builder import code_of_file
from rtit.profile.losses import ProfileLosses
from rtit.profile.tables import NO_BINARY, Binary, Edges, Profile
from rtit.trace import End
from rtit.trace.tables.counts import BoundedCounter

if TYPE_CHECKING:
    from rtit._core import Space
    from rtit.image import Files, FileSymbols

_NO_LIMIT = 1 << 62
"""A number of counters that no recording reaches, so that every edge has a count."""
FileKey = tuple[str, bytes | None]


def detach_files(found: Profile) -> Profile:
    """Return a profile that can be pickled: its binaries have neither symbols nor code."""
    detached: Any = {"symbols": None, "space": None}
    return _replace_binaries(found, lambda binary: replace(binary, **detached))


def _replace_binaries(found: Profile, change: Callable[[Binary], Binary]) -> Profile:
    changed = {each.number: change(each) for each in found.binaries}
    main = found.main
    if main is not None:
        main = changed.get(main.number) or change(main)
    return replace(found, binaries=[*changed.values()], main=main)


class SharedFiles:
    """Symbols and code of files, read once for all profiles that have a file."""

    def __init__(self) -> None:
        self._known: dict[FileKey, tuple[FileSymbols, Space]] = {}

    def attach(self, found: Profile, open_files: Callable[[], Files]) -> Profile:
        """Return a profile of `detach_files` with symbols and code again.

        `open_files` returns the files of its recording, and is called if a file is new. Raises
        ImageError if a file cannot be read any more.
        """
        files: Files | None = None

        def attach_file(binary: Binary) -> Binary:
            nonlocal files
            key = binary.path, binary.build_id
            if key not in self._known:
                files = files or open_files()
                symbols = files.symbols(*key)
                if symbols is None:
                    raise ImageError("changed while it was read", source=binary.path)
                self._known[key] = symbols, code_of_file(files, *key, binary.code_ranges)
            symbols, space = self._known[key]
            return replace(binary, symbols=symbols, space=space)

        return _replace_binaries(found, attach_file)


class ProfileSum:
    """The sum of the profiles of many recordings: one row for each instruction and edge."""

    def __init__(self) -> None:
        self._binaries: dict[FileKey, Binary] = {}
        self._programs: list[FileKey] = []
        self._edges = BoundedCounter("i4 u8 i4 u8 u1", _NO_LIMIT, kind_column=4)
        self._instructions = 0
        self._losses = ProfileLosses()
        self._threads: list[tuple[str, int]] = []
        self._transfers: Counter[End] = Counter()
        self._unmapped_code: Counter[tuple[str, str]] = Counter()

    def add(self, found: Profile, name: str) -> None:
        """Add the profile of a recording that is called `name`."""
        numbers = {each.number: self._add_instructions(each) for each in found.binaries}
        for each in found.binaries:
            self._add_edges(each, numbers)
        if found.main is not None:
            key = found.main.path, found.main.build_id
            if key not in self._programs:
                self._programs.append(key)
        self._instructions += found.instructions
        self._losses.kernel += found.losses.kernel
        self._losses.no_file += found.losses.no_file
        lines = found.losses.describe_losses(unmapped=False)
        self._losses.problems += [f"{name}: {line}" for line in lines]
        self._threads += found.threads
        self._transfers.update(found.transfers)
        self._unmapped_code.update(found.unmapped_code)

    def add_unreadable(self, lines: list[str]) -> None:
        """Add a sentence for each recording that could not be read."""
        self._losses.problems += lines

    def _add_instructions(self, new: Binary) -> int:
        key = new.path, new.build_id
        known = self._binaries.get(key)
        if known is None:
            self._binaries[key] = replace(new, number=len(self._binaries))
            return self._binaries[key].number
        offset = np.union1d(known.offset, new.offset)
        length, kind = (np.zeros(len(offset), np.uint8) for _ in range(2))
        count = np.zeros(len(offset), np.uint64)
        for each in (known, new):
            at = np.searchsorted(offset, each.offset)
            length[at], kind[at] = each.length, each.kind
            count[at] += each.count
        self._binaries[key] = replace(known, offset=offset, length=length, kind=kind, count=count)
        return known.number

    def _add_edges(self, binary: Binary, numbers: dict[int, int]) -> None:
        """Add the edges of a binary. An edge to another binary is among the edges of both."""
        edges = binary.edges
        elsewhere = ~np.isin(edges.source_binary, [*numbers])
        edges = edges.select_rows((edges.source_binary == binary.number) | elsewhere)

        def renumber(column: Any) -> Any:
            new = np.full(len(column), NO_BINARY, np.int32)
            for old, number in numbers.items():
                new[column == old] = number
            return new

        source_binary, target_binary = map(renumber, (edges.source_binary, edges.target_binary))
        rows = source_binary, edges.source, target_binary, edges.target, edges.kind
        self._edges.add_rows(*rows, count=edges.count)

    @property
    def programs(self) -> list[str]:
        """The paths of the recorded programs."""
        return [path for path, _ in self._programs]

    def profile(self) -> Profile:
        """Return the sum. Its main binary is the program, if all recordings have the same."""
        edges = Edges(*self._edges.take_sorted_columns())
        binaries = {
            key: replace(
                each,
                edges=edges.select_rows(
                    (edges.source_binary == each.number) | (edges.target_binary == each.number)
                ),
            )
            for key, each in self._binaries.items()
        }
        main = binaries.get(self._programs[0]) if len(self._programs) == 1 else None
        return Profile(
            [*binaries.values()],
            main,
            self._instructions,
            self._losses,
            self._threads,
            {kind: self._transfers[kind] for kind in End},
            self._unmapped_code,
        )
