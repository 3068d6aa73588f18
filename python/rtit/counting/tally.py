"""The counts of one process, as the plugin leaves them: how often each block ran."""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rtit.counting.head import MAGIC, MOST_TABLES, REPEAT, TIDS_AT
from rtit.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# As crates/qemu/src/shared/block_counters.rs has them.
_BLOCKS_AT = 1 << 16
_MAPPINGS_AT = 1 << 25
_CELLS_AT = 1 << 26
_MAPPING = 1 << 13
_PATH_AT = 32
_BLOCKS = 1 << 20
_CELL = 16
_HEAD = 32
_MOST_MAPPINGS = 1 << 12

_BLOCK = np.dtype(
    [
        ("start", "<u8"),
        ("mapping", "<u4"),
        ("instructions", "<u2"),
        ("exit", "u1"),
        ("reserved", "u1"),
    ]
)

NOWHERE = (1 << 32) - 1
"""The mapping of a block that is in no file."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """Part of a file in a process's memory: addresses, and the offset of `start` in the file."""

    start: int
    end: int
    offset: int
    path: str


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """One process that ran one program.

    Columns of one length, a row a block that ran: its address, a row of `mappings` or NOWHERE,
    how many instructions it has, how it is left, and how often: by its first way (to the next
    instruction, of a conditional branch) and by the other (taken; of a repeated instruction: before
    another iteration, so that this instruction has not retired). `threads` has the instructions of
    those that had not ended, by tid.
    """

    start: NDArray[np.uint64]
    mapping: NDArray[np.uint32]
    instructions: NDArray[np.uint64]
    exit: NDArray[np.uint8]
    first: NDArray[np.uint64]
    other: NDArray[np.uint64]
    mappings: list[MappedFile]
    threads: dict[int, int]


def read(file: int) -> Tally:
    """Read the counts in an open file, which nobody can make smaller: the plugin has sealed it.
    Raises InputError for what is none.
    """
    if not _is_sealed(file):
        raise InputError("the counts of a process are in a file that may shrink")
    size = os.fstat(file).st_size
    if size < _HEAD:
        raise InputError("the counts of a process are cut off", offset=size)
    with mmap.mmap(file, 0, mmap.MAP_SHARED, mmap.PROT_READ) as data:
        words = np.frombuffer(data, "<u8", 4)
        magic, blocks, mappings, tables = words.tolist()
        del words
        if magic != MAGIC or blocks > _BLOCKS or tables > MOST_TABLES:
            raise InputError("these are no counts of a process", offset=0, value=hex(magic))
        if size < _CELLS_AT + tables * _BLOCKS * _CELL:
            raise InputError("the counts of a process are cut off", offset=size)
        return _read(data, blocks, min(mappings, _MOST_MAPPINGS), tables)


def _is_sealed(file: int) -> bool:
    try:
        return bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:  # it is not in memory
        return False


def _read(data: mmap.mmap, blocks: int, mappings: int, tables: int) -> Tally:
    rows = np.frombuffer(data[_BLOCKS_AT : _BLOCKS_AT + blocks * _BLOCK.itemsize], _BLOCK)
    weight = rows["instructions"].astype(np.uint64)
    unfinished = (rows["exit"] == REPEAT).astype(np.uint64)
    tids = np.frombuffer(data[TIDS_AT : TIDS_AT + 8 * tables], "<u8").tolist()
    total = np.zeros((blocks, 2), np.uint64)
    threads: dict[int, int] = {}
    for table, tid in enumerate(tids):
        if table and not tid:
            continue
        at = _CELLS_AT + table * _BLOCKS * _CELL
        own = np.frombuffer(data[at : at + blocks * _CELL], "<u8").reshape(blocks, 2)
        total += own
        if table:
            done = own[:, 0] * weight + own[:, 1] * (weight - unfinished)
            threads[tid] = threads.get(tid, 0) + int(done.sum())
    ran = total.any(axis=1)
    rows, total = rows[ran], total[ran]
    return Tally(
        rows["start"].astype(np.uint64),
        rows["mapping"].astype(np.uint32),
        weight[ran],
        rows["exit"].copy(),
        total[:, 0].copy(),
        total[:, 1].copy(),
        [_mapping(data, index) for index in range(mappings)],
        threads,
    )


def _mapping(data: mmap.mmap, index: int) -> MappedFile:
    at = _MAPPINGS_AT + index * _MAPPING
    start, end, offset, length = np.frombuffer(data[at : at + _PATH_AT], "<u8").tolist()
    path = data[at + _PATH_AT : at + min(_PATH_AT + length, _MAPPING)]
    return MappedFile(start, end, offset, os.fsdecode(path))
