"""Branch stacks as text, as `perf script -F ip,brstack --show-mmap-events` prints them.

A sample for every so many taken branches, latest first, without gaps: the last branch of a sample
is the first of the next, so that each stretch between two branches is in one of them; that branch
counts twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rtit.image import UPPER, has_file
from rtit.readable import readable
from rtit.trace import End

if TYPE_CHECKING:
    from rtit.image import Mapping
    from rtit.trace import Stream, Trace

DEPTH = 512
"""Branches of a sample. A processor has 32; the more there are, the fewer count twice."""
_PAGE = 4096


def perf(trace: Trace, streams: Sequence[Stream]) -> Iterator[str]:
    """The mappings of all processes, then the samples of each stream."""
    for pid in trace.images.pids:
        for each in trace.images.mappings(pid):
            for start, size, offset in _executable(trace, each):
                at = f"[{start:#x}({size:#x}) @ {offset:#x} 00:00 0 0]"
                yield f"PERF_RECORD_MMAP2 {pid}/{pid}: {at}: r-xp {readable(each.path)}"
    for stream in streams:
        yield from _samples(stream)


def _executable(trace: Trace, mapping: Mapping) -> Iterator[tuple[int, int, int]]:
    """The parts of a mapping that the kernel maps executable: start, size, file offset. What comes
    from QEMU may join them with their neighbours, and readers look for the segments' own offsets.
    """
    if not has_file(mapping.path) or mapping.start >= UPPER:
        return
    symbols = trace.images.files.symbols(mapping.path, mapping.build_id)
    for offset, _address, size, _memory, flags in symbols.elf.segments if symbols else ():
        begin = max(offset & -_PAGE, mapping.offset)
        end = min(
            (offset + size + _PAGE - 1) & -_PAGE, mapping.offset + mapping.end - mapping.start
        )
        if flags & 1 and begin < end:
            yield mapping.start + begin - mapping.offset, end - begin, begin


def _samples(stream: Stream) -> Iterator[str]:
    import numpy as np

    entries: list[str] = []
    for branches in stream.branches():
        taken = branches.kind != End.CUT
        pairs = np.stack([branches.source[taken], branches.target[taken]], axis=1)
        different, which = np.unique(pairs, axis=0, return_inverse=True)
        texts = [f"{source:#x}/{target:#x}/P/-/-/0" for source, target in different.tolist()]
        entries.extend(texts[number] for number in which.ravel().tolist())
        begin = 0
        while begin + DEPTH <= len(entries):
            yield _sample(entries[begin : begin + DEPTH])
            begin += DEPTH - 1
        del entries[:begin]
    if len(entries) > 1:
        yield _sample(entries)


def _sample(entries: list[str]) -> str:
    """A line; the sample is where the latest branch went."""
    entries.reverse()
    target = int(entries[0].split("/")[1], 16)
    return f"{target:16x} {' '.join(entries)}"
