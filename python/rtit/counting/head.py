"""The sums that a process leaves when all its threads have ended: nothing else has to be read."""

from __future__ import annotations

import os
import struct

from rtit.errors import InputError

# As crates/qemu/src/shared/block_counters.rs has them; its `EndedTotals` follow the tables.
MAGIC = int.from_bytes(b"rtitcnt1", "little")
TIDS_AT = 1 << 12
EXITS = 13
MOST_TABLES = 1 << 10
_HEAD = struct.Struct(f"<{6 + 2 * EXITS}Q")

# How a block is left: `BlockExit` of crates/qemu/src/thread/translation_block.rs.
CONDITIONAL, JUMP, CALL, INDIRECT_JUMP, INDIRECT_CALL, RETURN, FAR = range(2, 9)
REPEAT = 11


class Sums:
    """What processes whose threads have ended executed: instructions, system calls of code in
    files, and how often blocks were left, by how, by the first way and by the other.
    """

    def __init__(self) -> None:
        self.instructions = 0
        self.system_calls = 0
        self.exits = [(0, 0)] * EXITS

    def add(self, file: int) -> bool:
        """Those of a process, from its file. False, and nothing has changed, if not all its threads
        have ended. Raises InputError for what is no such file.
        """
        magic, _, _, tables, instructions, calls, *exits = _words(file)
        if magic != MAGIC or tables > MOST_TABLES:
            raise InputError("these are no counts of a process", offset=0, value=hex(magic))
        if any(os.pread(file, 8 * tables, TIDS_AT)):
            return False
        self.instructions += instructions
        self.system_calls += calls
        pairs = zip(exits[::2], exits[1::2], strict=True)
        self.exits = [
            (first + more, other + others)
            for (first, other), (more, others) in zip(self.exits, pairs, strict=True)
        ]
        return True


def _words(file: int) -> tuple[int, ...]:
    data = os.pread(file, _HEAD.size, 0)
    if len(data) < _HEAD.size:
        raise InputError("the counts of a process are cut off", offset=len(data))
    return _HEAD.unpack(data)
