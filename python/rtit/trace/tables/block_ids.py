"""Executed blocks as ids: one small number for each block that ran, and a table of the blocks.

A program executes few distinct blocks very often. `BlockIds` has the sequence of executions as
numbers of 32 bits, `BlockTable` has each distinct block once. Together they contain the whole path
in a tenth of the memory of `Rows`. Which block gets which id depends on which decoder thread
reaches it first, so ids differ between runs with several jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from rtit.trace.tables.batch import Batch, End, Table, declare_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit import _core
    from rtit.trace.tables.batch import U8, U32, U64


_BATCH_IDS = 1 << 16
"""Approximate number of ids of a batch."""


class BlockIds(Batch):
    """Executed blocks in order: `id` is an index into `BlockIdTable.blocks`.

    A batch has whole runs of instructions.
    """

    id: U32 = declare_column("u4")

    def __iter__(self) -> Iterator[int]:
        return iter(self.buffer("id").tolist())


class BlockTable(Batch):
    """Distinct blocks: instructions that follow each other in memory, up to a branch, taken or not,
    or to an event.

    * `start`, `last`: IP of the first and the last instruction
    * `instructions`: their number
    * `end`: why the run ended, an `End`; CUT if `continues` is 1
    * `continues`: 1 if the next executed block continues the same run
    * `bits`: mode of the code, 16, 32 or 64
    """

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = ("start", "last")
    start: U64 = declare_column("u8")
    last: U64 = declare_column("u8")
    instructions: U32 = declare_column("u4")
    end: U8 = declare_column("u1", End)
    continues: U8 = declare_column("u1")
    bits: U8 = declare_column("u1")


class InstructionRuns(Batch):
    """Runs of instructions as in `Rows`, without times, offsets and events."""

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = ("start", "last")
    start: U64 = declare_column("u8")
    instructions: U32 = declare_column("u4")
    last: U64 = declare_column("u8")
    end: U8 = declare_column("u1", End)
    bits: U8 = declare_column("u1")


class BlockIdTable(Table[BlockIds]):
    """The block ids of a stream. `blocks` has the blocks, `runs` converts a batch to runs.

    Iterating decodes from the start each time, with new ids.
    """

    def __init__(self, new_decoder: Callable[[], _core.StreamDecoder]) -> None:
        super().__init__(BlockIds, self._decode_block_ids)
        self._new_decoder = new_decoder
        self._decoder: _core.StreamDecoder | None = None
        self._blocks: BlockTable | None = None

    def _decode_block_ids(self) -> Iterator[BlockIds]:
        import numpy as np

        decoder = self._new_decoder()
        self._decoder, self._blocks = decoder, None
        while (ids := decoder.block_ids(_BATCH_IDS)) is not None:
            if len(ids):
                yield BlockIds(np.asarray(ids))

    @property
    def blocks(self) -> BlockTable:
        """The blocks that the current iteration has reached so far, by id."""
        import numpy as np

        blocks = self._blocks or BlockTable(
            *(np.zeros(0, dtype) for _, dtype, _ in BlockTable.FIELDS)
        )
        if self._decoder is not None:
            new = [np.asarray(column) for column in self._decoder.blocks(len(blocks)).values()]
            if len(new[0]):
                old: list[NDArray[Any]] = [*blocks.columns().values()]
                blocks = BlockTable(*map(np.concatenate, zip(old, new, strict=True)))
                self._blocks = blocks
        return blocks

    def runs(self, batch: BlockIds) -> InstructionRuns:
        """Return the runs of a batch of the current iteration."""
        import numpy as np

        blocks, ids = self.blocks, batch.id
        ends = np.flatnonzero(blocks.continues[ids] == 0)
        starts = np.concatenate([np.zeros(min(len(ends), 1), np.intp), ends[:-1] + 1])
        first, last = ids[starts], ids[ends]
        count = blocks.instructions[ids]
        # `reduceat` rejects an empty batch.
        instructions = np.add.reduceat(count, starts) if len(starts) else count[:0]
        return InstructionRuns(
            start=blocks.start[first],
            instructions=instructions.astype(np.uint32, copy=False),
            last=blocks.last[last],
            end=blocks.end[last],
            bits=blocks.bits[first],
        )
