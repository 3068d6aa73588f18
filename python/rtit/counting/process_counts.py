"""The counts of processes, added up by binary.

A process counts in a file that the QEMU plugin shares with the recorder. After the totals
(`program_totals`) the file has one row per block, the mapped files, and one table of counts per
thread. `crates/qemu/src/shared/block_counters.rs` defines the layout.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.counting.program_totals import (
    CALL,
    CONDITIONAL,
    FAR,
    INDIRECT_CALL,
    INDIRECT_JUMP,
    JUMP,
    MAGIC,
    MAX_TABLES,
    REPEAT,
    RETURN,
    THREAD_TABLE_OFFSET,
)
from rtit.errors import InputError
from rtit.image import Files, Mapping, UnusableFile, has_file
from rtit.profile.builder import ProfileBuilder
from rtit.profile.losses import ProfileLosses
from rtit.profile.tables import NO_BINARY, Profile
from rtit.trace import End

if TYPE_CHECKING:
    from numpy.typing import NDArray


_BLOCKS_OFFSET = 1 << 16
_MAPPINGS_OFFSET = 1 << 25
_CELLS_OFFSET = 1 << 26
_MAPPING_SIZE = 1 << 13
_PATH_OFFSET = 32
_MAX_BLOCKS = 1 << 20
_CELL_SIZE = 16
_HEADER_SIZE = 32
_MAX_MAPPINGS = 1 << 12

_BLOCK_DTYPE = np.dtype(
    [
        ("start", "<u8"),
        ("mapping", "<u4"),
        ("instructions", "<u2"),
        ("exit", "u1"),
        ("reserved", "u1"),
    ]
)


@dataclass(frozen=True, slots=True)
class MappedFile:
    """Part of a file in a process's memory: addresses, and the offset of `start` in the file."""

    start: int
    end: int
    offset: int
    path: str


@dataclass(frozen=True, slots=True, eq=False)
class ProcessCounts:
    """The counts of one process that ran one program."""

    start: NDArray[np.uint64]
    mapping: NDArray[np.uint32]
    instructions: NDArray[np.uint64]
    exit: NDArray[np.uint8]
    first: NDArray[np.uint64]
    other: NDArray[np.uint64]
    mappings: list[MappedFile]
    threads: dict[int, int]


def read_process_counts(file: int) -> ProcessCounts:
    """Read the counts in an open file. The plugin has sealed the file, so it cannot shrink."""
    if not _is_sealed_against_shrinking(file):
        raise InputError("the counts of a process are in a file that may shrink")
    size = os.fstat(file).st_size
    if size < _HEADER_SIZE:
        raise InputError("the counts of a process are cut off", offset=size)
    with mmap.mmap(file, 0, mmap.MAP_SHARED, mmap.PROT_READ) as data:
        words = np.frombuffer(data, "<u8", 4)
        magic, blocks, mappings, tables = words.tolist()
        del words
        if magic != MAGIC or blocks > _MAX_BLOCKS or tables > MAX_TABLES:
            raise InputError("these are no counts of a process", offset=0, value=hex(magic))
        if size < _CELLS_OFFSET + tables * _MAX_BLOCKS * _CELL_SIZE:
            raise InputError("the counts of a process are cut off", offset=size)
        return _parse_counts(data, blocks, min(mappings, _MAX_MAPPINGS), tables)


def _is_sealed_against_shrinking(file: int) -> bool:
    try:
        return bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:  # it is not in memory
        return False


def _parse_counts(data: mmap.mmap, blocks: int, mappings: int, tables: int) -> ProcessCounts:
    rows = np.frombuffer(
        data[_BLOCKS_OFFSET : _BLOCKS_OFFSET + blocks * _BLOCK_DTYPE.itemsize], _BLOCK_DTYPE
    )
    weight = rows["instructions"].astype(np.uint64)
    unfinished = (rows["exit"] == REPEAT).astype(np.uint64)
    tids = np.frombuffer(
        data[THREAD_TABLE_OFFSET : THREAD_TABLE_OFFSET + 8 * tables], "<u8"
    ).tolist()
    total = np.zeros((blocks, 2), np.uint64)
    threads: dict[int, int] = {}
    for table, tid in enumerate(tids):
        if table and not tid:
            continue
        at = _CELLS_OFFSET + table * _MAX_BLOCKS * _CELL_SIZE
        own = np.frombuffer(data[at : at + blocks * _CELL_SIZE], "<u8").reshape(blocks, 2)
        total += own
        if table:
            done = own[:, 0] * weight + own[:, 1] * (weight - unfinished)
            threads[tid] = threads.get(tid, 0) + int(done.sum())
    ran = total.any(axis=1)
    rows, total = rows[ran], total[ran]
    return ProcessCounts(
        rows["start"].astype(np.uint64),
        rows["mapping"].astype(np.uint32),
        weight[ran],
        rows["exit"].copy(),
        total[:, 0].copy(),
        total[:, 1].copy(),
        [_parse_mapping(data, index) for index in range(mappings)],
        threads,
    )


def _parse_mapping(data: mmap.mmap, index: int) -> MappedFile:
    at = _MAPPINGS_OFFSET + index * _MAPPING_SIZE
    start, end, offset, length = np.frombuffer(data[at : at + _PATH_OFFSET], "<u8").tolist()
    path = data[at + _PATH_OFFSET : at + min(_PATH_OFFSET + length, _MAPPING_SIZE)]
    return MappedFile(start, end, offset, os.fsdecode(path))


_END_KINDS = {
    JUMP: End.JUMP,
    CALL: End.CALL,
    INDIRECT_JUMP: End.INDIRECT_JUMP,
    INDIRECT_CALL: End.INDIRECT_CALL,
    RETURN: End.RETURN,
    FAR: End.FAR,
}


class CountAccumulator:
    """Adds up the counts of processes, for at most `max_counters` addresses (0: the default)."""

    def __init__(self, max_counters: int = 0) -> None:
        self._files = Files()
        self._builder = ProfileBuilder(self._files, max_counters)
        self._transfers: Counter[End] = Counter()
        self._losses = ProfileLosses()
        self._instructions = 0

    def add_process(self, found: ProcessCounts) -> None:
        """Add one process, or one program of it."""
        numbers = np.array(
            [self._binary_number_of_mapping(each) for each in found.mappings] + [NO_BINARY],
            np.int64,
        )
        starts = np.array([each.start for each in found.mappings] + [0], np.uint64)
        offsets = np.array([each.offset for each in found.mappings] + [0], np.uint64)
        rows = np.minimum(found.mapping.astype(np.int64), len(found.mappings))
        binary = numbers[rows]
        offset = np.where(
            binary == NO_BINARY, found.start, found.start - starts[rows] + offsets[rows]
        )
        unfinished = (found.exit == REPEAT).astype(np.uint64)
        self._add_runs(binary, offset, found.instructions, found.first)
        self._add_runs(binary, offset, found.instructions - unfinished, found.other)
        whole = found.first + found.other
        for left, end in _END_KINDS.items():
            self._transfers[end] += int(whole[found.exit == left].sum())
        conditional = found.exit == CONDITIONAL
        self._transfers[End.CUT] += int(found.first[conditional].sum())
        self._transfers[End.CONDITIONAL] += int(found.other[conditional].sum())

    def build_profile(self, threads: list[tuple[str, int]]) -> Profile:
        """Return all counts, with the instructions of each thread. The profile has no edges."""
        binaries, _ = self._builder.build_binaries(self._losses)
        return Profile(
            [each for each in binaries if each.executed_instructions],
            None,
            self._instructions,
            self._losses,
            threads,
            {end: self._transfers[end] for end in End},
        )

    def _add_runs(self, binary: Any, offset: Any, instructions: Any, count: Any) -> None:
        self._instructions += int((instructions.astype(np.uint64) * count).sum())
        ran = (count > 0) & (instructions > 0)
        self._builder.add_runs(binary[ran], offset[ran], instructions[ran], count[ran])

    def _binary_number_of_mapping(self, mapped: MappedFile) -> int:
        if not has_file(mapped.path):
            return NO_BINARY
        problem = None
        try:
            self._files.read_code(mapped.path, mapped.offset, mapped.end - mapped.start)
        except UnusableFile as error:
            problem = error.problem
            if str(problem) not in self._losses.problems:
                self._losses.problems.append(str(problem))
        return self._builder.binary_number(
            Mapping(mapped.start, mapped.end, mapped.offset, mapped.path, None, 0, problem=problem)
        )
