"""Limits on the memory that one recording can use, whatever its records ask for.

A hostile file can name any number of threads, mappings or code changes. Every consumer of records
therefore reserves memory in one `MemoryBudget` before it keeps an object. If `reserve` returns
False, the consumer drops what it knows and reports a problem; results then lack something but are
never wrong.

The sizes in `MemoryLimits` are estimates of what CPython and the native code allocate for one
object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits of one recording, and the estimated bytes of each kind of object."""

    bytes: int = 1 << 27
    """All objects that records create, without code; a larger recording may use its own size."""
    min_share: int = 8
    """One part in this many of `bytes` remains for records, however large the AUX index is."""
    max_threads: int = 100_000
    """Ids of threads and processes."""
    max_losses: int = 1 << 17
    name_copies: int = 3
    """A path or symbol name is kept this often: in mappings, tables and messages."""

    aux_buffer: int = 3 << 10
    """With the state of the stream that is decoded from it."""
    aux_chunk: int = 576
    image: int = 512
    file: int = 768
    mapping: int = 320
    inherited_mapping: int = 160
    """A mapping that a forked process has from its parent."""
    code_change: int = 192
    """Code that was written, or an exec."""
    inherited_code_change: int = 16
    """While parent and child still share it."""
    kernel_mapping: int = 1024
    kernel_poke: int = 512
    kernel_symbol: int = 1536
    """A KSYMBOL record."""
    kernel_code: int = 256
    """Code of a BPF program, without the bytes of the code."""
    thread_id: int = 192
    process: int = 448
    process_exit: int = 448
    included_name: int = 128
    """Bytes of a thread name that `thread_id` and `process` include."""
    loss: int = 256

    def size_of_name(self, name: str) -> int:
        """Estimated bytes of all copies of a name."""
        return self.name_copies * getsizeof(name)

    def aux_index_size(self, chunks: Mapping[Any, Sequence[object]]) -> int:
        """Estimated bytes of the index of AUX data: the chunks of each buffer."""
        count = sum(map(len, chunks.values()))
        return self.aux_buffer * len(chunks) + self.aux_chunk * count


LIMITS = MemoryLimits()


class MemoryBudget:
    """Counts the bytes that are left for the objects of a recording.

    `recording_size` is the size of the recording in bytes, `reserved` what its AUX index uses.
    """

    def __init__(self, recording_size: int = 0, reserved: int = 0) -> None:
        self.limits = LIMITS
        total = max(self.limits.bytes, recording_size)
        self._left = max(total - reserved, total // self.limits.min_share)

    def reserve_memory(self, size: int) -> bool:
        """Reserve `size` bytes. Once one reservation fails, all later ones fail."""
        self._left = max(self._left - size, -1)
        return self._left >= 0
