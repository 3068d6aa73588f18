"""Branch stacks as text, as `perf script -F ip,brstack --show-mmap-events` prints them.

A sample for every so many taken branches, latest first, without gaps. Readers count each branch of
a sample, and each stretch between two of them. So that the stretch between two samples is in one,
too, the later one begins with a branch from nowhere, as behind an interrupt, to where the last
branch of the sample before it went: all counts are exact. It leads to no beginning of a function,
where it would count as a call.
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
"""Branches of a sample. A processor has 32; the more there are, the shorter the text."""
_CALLS = (End.CALL, End.INDIRECT_CALL)
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
    calls: list[bool] = []
    for branches in stream.branches():
        taken = branches.kind != End.CUT
        pairs = np.stack([branches.source[taken], branches.target[taken]], axis=1)
        different, which = np.unique(pairs, axis=0, return_inverse=True)
        texts = [_entry(source, target) for source, target in different.tolist()]
        entries.extend(texts[number] for number in which.ravel().tolist())
        calls.extend(np.isin(branches.kind[taken], _CALLS).tolist())
        begin = 0
        while begin + DEPTH < len(entries):
            end = _end(calls, begin)
            yield _sample(entries[begin:end])
            begin = end - 1
            entries[begin] = _entry(0, _target(entries[begin]))
        del entries[:begin], calls[:begin]
    if entries:
        yield _sample(entries)


def _end(calls: list[bool], begin: int) -> int:
    """Where a sample ends that begins there: behind a branch that is no call, if there is one."""
    for end in range(begin + DEPTH, begin + 1, -1):
        if not calls[end - 1]:
            return end
    return begin + DEPTH


def _entry(source: int, target: int) -> str:
    return f"{source:#x}/{target:#x}/P/-/-/0"


def _target(entry: str) -> int:
    return int(entry.split("/")[1], 16)


def _sample(entries: list[str]) -> str:
    """A line; the sample is where the latest branch went."""
    entries.reverse()
    return f"{_target(entries[0]):16x} {' '.join(entries)}"
