"""Two builds of one program: which file of the one is which of the other, and how places in code
that differs are told from each other.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.errors import ImageError
from rtit.image import UPPER, has_file, read_headers
from rtit.x86 import Class

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rtit.image import FileSymbols, Function, Mapping
    from rtit.trace import Trace

EXACT, BY_FUNCTION, BY_FILE = range(3)
"""How a place is compared: the instruction; the function that it is in; the file."""
_DIRECT = (Class.CONDITIONAL, Class.JUMP, Class.CALL)
_LARGEST = 1 << 20
_NOWHERE = (1 << 64) - 1


@dataclass(eq=False, slots=True)
class File:
    """A file that was mapped in one of the recordings. `symbols` None: its code is not known."""

    path: str
    identity: object
    symbols: FileSymbols | None

    @property
    def name(self) -> str:
        """Without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def is_program(self) -> bool:
        """Whether it says so itself."""
        try:
            return self.symbols is not None and read_headers(self.symbols.elf.path).is_program
        except (ImageError, OSError):
            return False


@dataclass(eq=False)
class Pair:
    """A file that is another build in the second recording."""

    left: File
    right: File

    def __str__(self) -> str:
        paths = dict.fromkeys((self.left.path, self.right.path))
        text = " and ".join(paths)
        text += " is another build in the second" if len(paths) == 1 else " are two builds"
        return f"{text}: {self._how}"

    @property
    def _how(self) -> str:
        named = len(self.names)
        if not named:
            return "no function has a name in both, nothing of them can be compared"
        return f"compared by the {named:,} functions that have a name in both"

    @cached_property
    def names(self) -> dict[str, int]:
        """Of the functions that are in both, numbered."""
        files = [self.left.symbols, self.right.symbols]
        found = [set(_by_key(each)) if each is not None else set() for each in files]
        return {name: number for number, name in enumerate(sorted(found[0] & found[1]))}

    def side(self, side: int) -> Side:
        """The code of the one or of the other."""
        return self._sides[side]

    @cached_property
    def _sides(self) -> tuple[Side, Side]:
        return Side(self, 0), Side(self, 1)


class Side:
    """One build of a pair. A place in a function that is laid out alike in both builds is exact: as
    many instructions of the same lengths, with branches to the same places. Of others only the
    function counts, and that it is entered and left.
    """

    def __init__(self, pair: Pair, side: int) -> None:
        self._pair = pair
        file, other = (pair.left, pair.right) if not side else (pair.right, pair.left)
        self._symbols = file.symbols
        self._other = other.symbols
        self._known: dict[int, tuple[int, int, bool]] = {}

    @cached_property
    def _others(self) -> dict[str, Function]:
        return _by_key(self._other) if self._other is not None else {}

    @cached_property
    def _keys(self) -> dict[int, str]:
        """By offset."""
        assert self._symbols is not None
        return {each.offset: key for key, each in _by_key(self._symbols).items()}

    def places(self, offsets: Any) -> tuple[Any, Any]:
        """For offsets in the file: what tells the places apart, and whether these are exact."""
        places = np.full(len(offsets), _NOWHERE, np.uint64)
        exact = np.zeros(len(offsets), bool)
        if self._symbols is None:
            return places, exact
        starts, ends, owners = self._symbols.columns
        if not len(starts):
            return places, exact
        found = np.maximum(np.searchsorted(starts, offsets, "right") - 1, 0)
        owner = np.where(
            (offsets >= starts[found]) & (offsets < ends[found]), owners[found].astype(np.int64), -1
        )
        for index in np.unique(owner).tolist():
            if index < 0:
                continue
            own = owner == index
            number, begin, alike = self._of(index)
            places[own] = number << 32
            if alike:
                places[own] += offsets[own] - np.uint64(begin)
                exact[own] = True
            else:
                places[own] += np.uint64((1 << 32) - 1)
        return places, exact

    def _of(self, index: int) -> tuple[int, int, bool]:
        """The number, the offset, and whether it is laid out as in the other build."""
        if index not in self._known:
            assert self._symbols is not None
            function = self._symbols.functions[index]
            key = self._keys.get(function.offset, "")
            other = self._others.get(key)
            number = self._pair.names.get(key, len(self._pair.names) + index)
            alike = other is not None and self._alike(function, other)
            self._known[index] = number, function.offset, alike
        return self._known[index]

    def _alike(self, function: Function, other: Function) -> bool:
        assert self._symbols is not None
        assert self._other is not None
        if function.size != other.size or function.size > _LARGEST:
            return False
        codes = [
            _code(symbols.elf.path, each)
            for symbols, each in ((self._symbols, function), (self._other, other))
        ]
        return codes[0] == codes[1] or _layout(codes[0]) == _layout(codes[1])


@dataclass(eq=False)
class Builds:
    """Which files of two recordings are which."""

    left: Trace
    right: Trace
    _numbers: dict[object, int] = field(default_factory=dict)

    @cached_property
    def files(self) -> tuple[dict[tuple[str, bytes | None], File], ...]:
        """Of each recording, by recorded path and build id."""
        return tuple(_files(each) for each in (self.left, self.right))

    @cached_property
    def pairs(self) -> list[Pair]:
        """Files that differ: of the same path, else of the same name, else the two programs."""
        shared = set.intersection(
            *({each.identity for each in side.values()} for side in self.files)
        )
        left, right = (
            [each for each in side.values() if each.symbols and each.identity not in shared]
            for side in self.files
        )
        found: list[Pair] = []
        for same in (_same_path, _same_name, _both_programs):
            for one in [*left]:
                others = [each for each in right if same(one, each)]
                if len(others) == 1:
                    found.append(Pair(one, others[0]))
                    left.remove(one)
                    right.remove(others[0])
        return found

    @cached_property
    def names(self) -> dict[str, str]:
        """What files of the second are called in the first, where that is something else."""
        return {
            pair.right.name: pair.left.name
            for pair in self.pairs
            if pair.right.name != pair.left.name
        }

    def tables(self, side: int, mappings: Iterable[Mapping]) -> tuple[Any, dict[int, Side | None]]:
        """Of mappings a number each, the same in both recordings, with a last one for what is
        nowhere; by their rows how those are compared that are not exact: None is by file.
        """
        paired = {id(file): pair for pair in self.pairs for file in (pair.left, pair.right)}
        numbers, sides = [], dict[int, Side | None]()
        for row, each in enumerate(mappings):
            file = self.files[side].get((each.path, each.build_id))
            key: object = each.build_id or each.path
            if file is not None:
                pair = paired.get(id(file))
                key = pair or file.identity
                if pair is not None:
                    sides[row] = pair.side(side)
                elif self.pairs and _is_loader(file):
                    sides[row] = None
            numbers.append(self._numbers.setdefault(key, len(self._numbers)))
        return np.array([*numbers, -1], np.int64), sides


def _same_path(one: File, other: File) -> bool:
    return one.path == other.path


def _same_name(one: File, other: File) -> bool:
    return one.name == other.name


def _both_programs(one: File, other: File) -> bool:
    return one.is_program and other.is_program


def _is_loader(file: File) -> bool:
    """What the dynamic loader does depends on how a file was built."""
    return file.name.startswith(("ld-linux", "ld.so", "ld-musl"))


def _files(trace: Trace) -> dict[tuple[str, bytes | None], File]:
    found: dict[tuple[str, bytes | None], File] = {}
    for pid in trace.images.pids:
        for each in trace.images.mappings(pid):
            key = each.path, each.build_id
            # the kernel is compared by names alone
            if key in found or not has_file(each.path) or each.start >= UPPER:
                continue
            symbols = trace.images.files.symbols(*key) if each.problem is None else None
            found[key] = File(each.path, _identity(each, symbols), symbols)
    return found


def _identity(mapping: Mapping, symbols: FileSymbols | None) -> object:
    """The build id, else what is in the file, else the path."""
    build_id = mapping.build_id or (symbols.elf.build_id if symbols is not None else None)
    if build_id:
        return build_id
    if symbols is None:
        return mapping.path
    try:
        with Path(symbols.elf.path).open("rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError:
        return mapping.path


def _by_key(symbols: FileSymbols) -> dict[str, Function]:
    """Functions by name; several of one name are numbered in their order."""
    found: dict[str, Function] = {}
    seen: defaultdict[str, int] = defaultdict(int)
    last = -1
    for function in symbols.functions:
        if function.offset == last:  # another name of the same
            continue
        last = function.offset
        number = seen[function.name]
        seen[function.name] += 1
        found[f"{function.name}\0{number}" if number else function.name] = function
    return found


def _code(path: Path, function: Function) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(function.offset)
            return file.read(function.size)
    except OSError:
        return b""


def _layout(code: bytes) -> list[tuple[int, ...]] | bytes:
    """Its instructions: length, class, and where direct branches within it go."""
    from rtit._core import decode_instruction

    found, at = list[tuple[int, ...]](), 0
    while at < len(code):
        try:
            length, kind, target, _ = decode_instruction(code[at : at + 15], at)
        except ValueError:
            return code  # like itself alone
        inside = target if kind in _DIRECT and target < len(code) else -1
        found.append((length, kind, inside))
        at += length
    return found
