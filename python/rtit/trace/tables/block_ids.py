"""Blocks by number: one number for each block that ran, and a table of what the numbers mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from rtit.trace.tables.batch import Batch, End, Field, Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core


NUMBERS = 1 << 16
"""Of a batch, about."""


class Numbers(Batch):
    """What ran, in order: `id` is the place of a block in `Numbered.blocks`. A batch has whole
    runs.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (("id", "u4", None),)
    WHEN: ClassVar[str | None] = None
    id: NDArray[np.uint32]

    def __iter__(self) -> Iterator[int]:
        return iter(self.buffer("id").tolist())


class KnownBlocks(Batch):
    """Instructions one after the other in memory, up to a branch, taken or not, or to where
    something came between. `start`, `last`: IPs of the first and the last; `instructions`: how
    many; `end`: why the run ended, a number of `End`, and CUT where `goes_on` is 1: then the block
    that ran next goes on with the run in memory; `bits`: the mode of the code, 16, 32 or 64.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("start", "u8", None),
        ("last", "u8", None),
        ("instructions", "u4", None),
        ("end", "u1", End),
        ("goes_on", "u1", None),
        ("bits", "u1", None),
    )
    WHEN: ClassVar[str | None] = None
    WHERE: ClassVar[tuple[str, str] | None] = ("start", "last")
    start: NDArray[np.uint64]
    last: NDArray[np.uint64]
    instructions: NDArray[np.uint32]
    end: NDArray[np.uint8]
    goes_on: NDArray[np.uint8]
    bits: NDArray[np.uint8]


class Runs(Batch):
    """Runs of instructions, as `Rows` has them, without what the trace tells of each."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("start", "u8", None),
        ("instructions", "u4", None),
        ("last", "u8", None),
        ("end", "u1", End),
        ("bits", "u1", None),
    )
    WHEN: ClassVar[str | None] = None
    WHERE: ClassVar[tuple[str, str] | None] = ("start", "last")
    start: NDArray[np.uint64]
    instructions: NDArray[np.uint32]
    last: NDArray[np.uint64]
    end: NDArray[np.uint8]
    bits: NDArray[np.uint8]


class Numbered(Table[Numbers]):
    """The blocks of a stream by number, made as batches are taken: iterated it decodes from the
    start each time, and numbers begin anew. `blocks` is what they mean, `runs` makes rows of a
    batch. Which block has which number depends on who met it first: several threads do not always
    number alike.
    """

    def __init__(self, native: Callable[[], _core.Flow]) -> None:
        super().__init__(Numbers, self._decoded)
        self._native = native
        self._flow: _core.Flow | None = None
        self._known: KnownBlocks | None = None

    def _decoded(self) -> Iterator[Numbers]:
        import numpy as np

        flow = self._native()
        self._flow, self._known = flow, None
        while (numbers := flow.block_ids(NUMBERS)) is not None:
            if len(numbers):
                yield Numbers(np.asarray(numbers))

    @property
    def blocks(self) -> KnownBlocks:
        """The blocks that have been met so far since it was last iterated, by number; none before
        the first batch.
        """
        import numpy as np

        known = self._known or _known([np.zeros(0, dtype) for _, dtype, _ in KnownBlocks.FIELDS])
        if self._flow is not None:
            more = [np.asarray(column) for column in self._flow.blocks(len(known))]
            if len(more[0]):
                before = known.columns().values()
                joined = map(np.concatenate, zip(before, more, strict=True))
                known = self._known = _known(list(joined))
        return known

    def runs(self, batch: Numbers) -> Runs:
        """The runs of a batch of this table."""
        import numpy as np

        blocks, ids = self.blocks, batch.id
        ends = np.flatnonzero(blocks.goes_on[ids] == 0)
        begins = np.concatenate([np.zeros(min(len(ends), 1), np.intp), ends[:-1] + 1])
        first, last = ids[begins], ids[ends]
        count = blocks.instructions[ids]
        # without a run there is nothing to begin at
        instructions = np.add.reduceat(count, begins) if len(begins) else count[:0]
        return Runs(
            start=blocks.start[first],
            instructions=instructions.astype(np.uint32, copy=False),
            last=blocks.last[last],
            end=blocks.end[last],
            bits=blocks.bits[first],
        )


def _known(columns: list[NDArray[Any]]) -> KnownBlocks:
    start, last, instructions, end, goes_on, bits = columns
    return KnownBlocks(start, last, instructions, end, goes_on, bits)
