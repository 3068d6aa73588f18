"""What ran, as batches: instructions, branches, sync points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rtit.trace.batch import Batch, Field
from rtit.trace.categories import End

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Instruction(NamedTuple):
    """One instruction; see `Instructions`."""

    ip: int
    size: int
    time: int
    bits: int
    in_tx: int


class Instructions(Batch):
    """Instructions that ran, in order. `ip`: address; `size`: bytes; `time`: TSC estimate at the
    start of its run, a lower bound; `bits`: the mode of its code, 16, 32 or 64; `in_tx`: 1 if it
    ran in a transaction, as far as the trace tells.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("ip", "u8", None),
        ("size", "u1", None),
        ("time", "u8", None),
        ("bits", "u1", None),
        ("in_tx", "u1", None),
    )
    WHERE: ClassVar[tuple[str, str] | None] = ("ip", "ip")
    ip: NDArray[np.uint64]
    size: NDArray[np.uint8]
    time: NDArray[np.uint64]
    bits: NDArray[np.uint8]
    in_tx: NDArray[np.uint8]

    def __iter__(self) -> Iterator[Instruction]:
        return map(Instruction, *self.lists())


class Branch(NamedTuple):
    """One branch; see `Branches`."""

    source: int
    target: int
    kind: End
    time: int


class Branches(Batch):
    """Branches and other transfers, in order, direct ones as well. `source`: IP of the instruction;
    `target`: where it went; `kind`: an `End`, CUT for a conditional branch that was not taken;
    `time`: TSC estimate, a lower bound.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("source", "u8", None),
        ("target", "u8", None),
        ("kind", "u1", End),
        ("time", "u8", None),
    )
    WHERE: ClassVar[tuple[str, str] | None] = ("source", "source")
    source: NDArray[np.uint64]
    target: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    time: NDArray[np.uint64]

    def __iter__(self) -> Iterator[Branch]:
        for source, target, kind, time in zip(*self.lists(), strict=True):
            yield Branch(source, target, End(kind), time)


class SyncPoint(NamedTuple):
    """One PSB+; see `SyncPoints`."""

    offset: int
    ip: int
    time: int


class SyncPoints(Batch):
    """PSB+ that were read: decoding can begin there. `offset`: of the PSB in the stream; `ip`:
    where the program was, 0 if tracing was off; `time`: TSC estimate, a lower bound.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("offset", "u8", None),
        ("ip", "u8", None),
        ("time", "u8", None),
    )
    WHERE: ClassVar[tuple[str, str] | None] = ("ip", "ip")
    offset: NDArray[np.uint64]
    ip: NDArray[np.uint64]
    time: NDArray[np.uint64]

    def __iter__(self) -> Iterator[SyncPoint]:
        return map(SyncPoint, *self.lists())
