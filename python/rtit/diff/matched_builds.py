"""Matches the files of two recordings, and compares code of files that are different builds.

A file with the same build id (or content) in both recordings is one file. Other files are paired by
path, then by name, then as the two programs. Code of paired files has no common offsets, so a
position there is a function, by name: exact to the instruction if the function has the same layout
in both builds, else the function as a whole.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.diff.difference import is_dynamic_loader
from rtit.image import KERNEL_START, has_file
from rtit.x86 import InstructionClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rtit.image import FileFunction, FileSymbols, Mapping
    from rtit.trace import Trace

EXACT, BY_FUNCTION, BY_FILE = range(3)
"""Precision of a position: the instruction, the function, or the file."""
_DIRECT = (InstructionClass.CONDITIONAL, InstructionClass.JUMP, InstructionClass.CALL)
_MAX_FUNCTION_BYTES = 1 << 20
_NO_FUNCTION = (1 << 64) - 1


@dataclass(eq=False, slots=True)
class RecordedFile:
    """A file that was mapped in one of the recordings. `symbols` is None if its code is unknown."""

    path: str
    identity: object
    symbols: FileSymbols | None

    @property
    def name(self) -> str:
        """The name without the folder."""
        return self.path.rpartition("/")[2]

    @property
    def is_program(self) -> bool:
        """Whether the ELF header says that the file is a program."""
        return self.symbols is not None and self.symbols.elf.is_program


@dataclass(eq=False)
class MatchedFiles:
    """Two builds of a file, one of each recording."""

    left: RecordedFile
    right: RecordedFile

    def __str__(self) -> str:
        paths = dict.fromkeys((self.left.path, self.right.path))
        text = " and ".join(paths)
        text += " is another build in the second" if len(paths) == 1 else " are two builds"
        return f"{text}: {self._describe_comparison}"

    @property
    def _describe_comparison(self) -> str:
        named = len(self.common_functions)
        if not named:
            return "no function name occurs in both, so rtit cannot compare their functions"
        return f"compared by the {named:,} functions whose names occur in both"

    @cached_property
    def common_functions(self) -> dict[str, int]:
        """Numbers of the functions that have a name in both builds."""
        files = [self.left.symbols, self.right.symbols]
        found = [set(_functions_by_key(each)) if each is not None else set() for each in files]
        return {name: number for number, name in enumerate(sorted(found[0] & found[1]))}

    def build_of_side(self, side: int) -> PairedBuild:
        """Return the build of the first (0) or the second recording (1)."""
        return self._paired_builds[side]

    @cached_property
    def _paired_builds(self) -> tuple[PairedBuild, PairedBuild]:
        return PairedBuild(self, 0), PairedBuild(self, 1)


class PairedBuild:
    """Maps offsets in one of two builds to positions that both builds share.

    Functions have the same layout if their instructions have the same lengths and classes and their
    direct branches have the same targets. Positions in such functions are exact.
    """

    def __init__(self, pair: MatchedFiles, side: int) -> None:
        self._files = pair
        file, other = (pair.left, pair.right) if not side else (pair.right, pair.left)
        self._symbols = file.symbols
        self._other = other.symbols
        self._function_keys: dict[int, tuple[int, int, bool]] = {}

    @cached_property
    def _functions_of_other_build(self) -> dict[str, FileFunction]:
        return _functions_by_key(self._other) if self._other is not None else {}

    @cached_property
    def _function_name_by_offset(self) -> dict[int, str]:
        """Names of functions, by offset."""
        assert self._symbols is not None
        return {each.offset: key for key, each in _functions_by_key(self._symbols).items()}

    def positions_of_offsets(self, offsets: Any) -> tuple[Any, Any]:
        """Return the position of each file offset, and whether it is exact."""
        positions = np.full(len(offsets), _NO_FUNCTION, np.uint64)
        exact = np.zeros(len(offsets), bool)
        if self._symbols is None:
            return positions, exact
        starts, ends, owners = self._symbols.owned_range_columns
        if not len(starts):
            return positions, exact
        found = np.maximum(np.searchsorted(starts, offsets, "right") - 1, 0)
        owner = np.where(
            (offsets >= starts[found]) & (offsets < ends[found]), owners[found].astype(np.int64), -1
        )
        for index in np.unique(owner).tolist():
            if index < 0 or self._symbols.functions[index].binding == "f":  # no name
                continue
            rows = owner == index
            number, begin, has_same_layout = self._function_key(index)
            positions[rows] = number << 32
            if has_same_layout:
                positions[rows] += offsets[rows] - np.uint64(begin)
                exact[rows] = True
            else:
                positions[rows] += np.uint64((1 << 32) - 1)
        return positions, exact

    def _function_key(self, index: int) -> tuple[int, int, bool]:
        """Return number and offset of a function, and whether both builds have its layout."""
        if index not in self._function_keys:
            assert self._symbols is not None
            function = self._symbols.functions[index]
            key = self._function_name_by_offset.get(function.offset, "")
            other = self._functions_of_other_build.get(key)
            number = self._files.common_functions.get(
                key, len(self._files.common_functions) + index
            )
            has_same_layout = other is not None and self._has_same_layout(function, other)
            self._function_keys[index] = number, function.offset, has_same_layout
        return self._function_keys[index]

    def _has_same_layout(self, function: FileFunction, other: FileFunction) -> bool:
        assert self._symbols is not None
        assert self._other is not None
        if function.size != other.size or function.size > _MAX_FUNCTION_BYTES:
            return False
        codes = [
            _read_code(symbols.elf.path, each)
            for symbols, each in ((self._symbols, function), (self._other, other))
        ]
        return codes[0] == codes[1] or _instruction_layout(codes[0]) == _instruction_layout(
            codes[1]
        )


@dataclass(eq=False)
class BuildMatching:
    """The matched files of two recordings."""

    left: Trace
    right: Trace
    _numbers: dict[object, int] = field(default_factory=dict)

    @cached_property
    def recorded_files(self) -> tuple[dict[tuple[str, bytes | None], RecordedFile], ...]:
        """The files of each recording, by recorded path and build id."""
        return tuple(_collect_recorded_files(each) for each in (self.left, self.right))

    @cached_property
    def different_builds(self) -> list[MatchedFiles]:
        """Files that are different builds: of equal path, else of equal name, else the two
        programs.
        """
        shared = set.intersection(
            *({each.identity for each in side.values()} for side in self.recorded_files)
        )
        left, right = (
            [each for each in side.values() if each.symbols and each.identity not in shared]
            for side in self.recorded_files
        )
        found: list[MatchedFiles] = []
        criteria: tuple[Callable[[RecordedFile, RecordedFile], bool], ...] = (
            lambda one, other: one.path == other.path,
            lambda one, other: one.name == other.name,
            lambda one, other: one.is_program and other.is_program,
        )
        for is_pair in criteria:
            for one in [*left]:
                others = [each for each in right if is_pair(one, each)]
                if len(others) == 1:
                    found.append(MatchedFiles(one, others[0]))
                    left.remove(one)
                    right.remove(others[0])
        return found

    @cached_property
    def renamed_files(self) -> dict[str, str]:
        """Name in the first recording of each paired file that has another name in the second."""
        return {
            pair.right.name: pair.left.name
            for pair in self.different_builds
            if pair.right.name != pair.left.name
        }

    def mapping_keys(
        self, side: int, mappings: Iterable[Mapping]
    ) -> tuple[Any, dict[int, PairedBuild | None]]:
        """Return a key for each mapping, equal in both recordings, and the builds of inexact
        mappings.

        The last key, -1, is that of unmapped code. Builds are by row of the mapping; None means
        that only the file counts.
        """
        paired = {
            id(file): pair for pair in self.different_builds for file in (pair.left, pair.right)
        }
        keys, builds = [], dict[int, PairedBuild | None]()
        for row, each in enumerate(mappings):
            file = self.recorded_files[side].get((each.path, each.build_id))
            key: object = each.build_id or each.path
            if file is not None:
                pair = paired.get(id(file))
                key = pair or file.identity
                if pair is not None:
                    builds[row] = pair.build_of_side(side)
                elif self.different_builds and is_dynamic_loader(file.name):
                    # the path of the loader depends on how other files were built
                    builds[row] = None
            keys.append(self._numbers.setdefault(key, len(self._numbers)))
        return np.array([*keys, -1], np.int64), builds


def _collect_recorded_files(trace: Trace) -> dict[tuple[str, bytes | None], RecordedFile]:
    found: dict[tuple[str, bytes | None], RecordedFile] = {}
    for pid in trace.images.pids:
        for each in trace.images.mappings(pid):
            key = each.path, each.build_id
            # kernel code is compared by function names only
            if key in found or not has_file(each.path) or each.start >= KERNEL_START:
                continue
            symbols = trace.images.files.symbols(*key) if each.problem is None else None
            found[key] = RecordedFile(each.path, _identity_of_file(each, symbols), symbols)
    return found


def _identity_of_file(mapping: Mapping, symbols: FileSymbols | None) -> object:
    """Return the build id, else a hash of the content, else the path."""
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


def _functions_by_key(symbols: FileSymbols) -> dict[str, FileFunction]:
    """Return functions by name, without those that are named by address only. Functions of equal
    name get a number in order of offset.
    """
    found: dict[str, FileFunction] = {}
    seen: defaultdict[str, int] = defaultdict(int)
    last = -1
    for function in symbols.functions:
        if function.offset == last or function.binding == "f":  # an alias, or no name
            continue
        last = function.offset
        number = seen[function.name]
        seen[function.name] += 1
        found[f"{function.name}\0{number}" if number else function.name] = function
    return found


def _read_code(path: Path, function: FileFunction) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(function.offset)
            return file.read(function.size)
    except OSError:
        return b""


def _instruction_layout(code: bytes) -> list[tuple[int, ...]] | bytes:
    """Return length, class and internal branch target of each instruction.

    Code that cannot be decoded is its own layout.
    """
    from rtit._core import decode_instruction

    found, at = list[tuple[int, ...]](), 0
    while at < len(code):
        try:
            length, kind, target, _ = decode_instruction(code[at : at + 15], at)
        except ValueError:
            return code
        inside = target if kind in _DIRECT and target < len(code) else -1
        found.append((length, kind, inside))
        at += length
    return found
