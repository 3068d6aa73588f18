"""The totals of a process: the beginning of the file that the QEMU plugin shares with the recorder.

They are complete when all threads of the process have ended; then nothing else must be read.
This module does not load NumPy: its threads would take signals that the main thread waits for.
"""

from __future__ import annotations

import os
import struct

from rtit.errors import InputError

# The layout of crates/qemu/src/shared/block_counters.rs; after the tables: its `EndedTotals`.
MAGIC = int.from_bytes(b"rtitcnt1", "little")
THREAD_TABLE_OFFSET = 1 << 12
EXITS = 13
MAX_TABLES = 1 << 10
_HEADER = struct.Struct(f"<{6 + 2 * EXITS}Q")

# How a block is left: `BlockExit` of crates/qemu/src/thread/translation_block.rs.
CONDITIONAL, JUMP, CALL, INDIRECT_JUMP, INDIRECT_CALL, RETURN, FAR = range(2, 9)
REPEAT = 11


class ProgramTotals:
    """The summed totals of processes in which all threads have ended."""

    def __init__(self) -> None:
        self.instructions = 0
        self.system_calls = 0
        self.exits = [(0, 0)] * EXITS

    def add_process_file(self, file: int) -> bool:
        """Add the totals of a process, from its file. Return False, and change nothing, if a thread
        still runs.
        """
        magic, _, _, tables, instructions, calls, *exits = _read_header(file)
        if magic != MAGIC or tables > MAX_TABLES:
            raise InputError("these are no counts of a process", offset=0, value=hex(magic))
        if any(os.pread(file, 8 * tables, THREAD_TABLE_OFFSET)):
            return False
        self.instructions += instructions
        self.system_calls += calls
        pairs = zip(exits[::2], exits[1::2], strict=True)
        self.exits = [
            (first + more, other + others)
            for (first, other), (more, others) in zip(self.exits, pairs, strict=True)
        ]
        return True


def _read_header(file: int) -> tuple[int, ...]:
    data = os.pread(file, _HEADER.size, 0)
    if len(data) < _HEADER.size:
        raise InputError("the counts of a process are cut off", offset=len(data))
    return _HEADER.unpack(data)
