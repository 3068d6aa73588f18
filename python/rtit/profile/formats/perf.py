"""Branch stacks as text, as `perf script -F ip,brstack --show-mmap-events` prints them.

Each sample has the same number of taken branches, the latest first. Samples leave no gap. Readers
count each branch of a sample, and each range between two branches. To count the range between two
samples, the later sample starts with a branch from address 0, as after an interrupt, to the target
of the last branch of the earlier sample. All counts are exact. A sample does not start with a call:
its branch from 0 would count as another call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rtit.image import KERNEL_START, has_file
from rtit.text_escaping import escape_control_characters
from rtit.trace import BranchKind

if TYPE_CHECKING:
    from rtit.image import Mapping
    from rtit.trace import Stream, Trace

BRANCHES_PER_SAMPLE = 512
"""Branches per sample. Processors record 32; more branches make the text shorter."""
_CALLS = (BranchKind.CALL, BranchKind.INDIRECT_CALL)
_PAGE = 4096


def estimated_script_size(taken_branches: int) -> int:
    """Return about how many bytes the samples take, if addresses have 12 digits."""
    return taken_branches * (len(_format_branch_entry(1 << 46, 1 << 46)) + 1)


def perf_script(trace: Trace, streams: Sequence[Stream]) -> Iterator[str]:
    """Return the mappings of all processes, then the samples of each stream."""
    for pid in trace.images.pids:
        for each in trace.images.mappings(pid):
            for start, size, offset in _executable_parts_of_mapping(trace, each):
                at = f"[{start:#x}({size:#x}) @ {offset:#x} 00:00 0 0]"
                path = escape_control_characters(each.path)
                yield f"PERF_RECORD_MMAP2 {pid}/{pid}: {at}: r-xp {path}"
    for stream in streams:
        yield from _format_branch_samples(stream)


def _executable_parts_of_mapping(trace: Trace, mapping: Mapping) -> Iterator[tuple[int, int, int]]:
    """Return start, size and file offset of the executable parts of a mapping.

    QEMU may join them with neighbours, but readers expect the offsets of the file's segments.
    """
    if not has_file(mapping.path) or mapping.start >= KERNEL_START:
        return
    symbols = trace.images.files.symbols(mapping.path, mapping.build_id)
    for offset, _address, size, _memory, flags in symbols.elf.segments if symbols else ():
        begin = max(offset & -_PAGE, mapping.offset)
        end = min(
            (offset + size + _PAGE - 1) & -_PAGE, mapping.offset + mapping.end - mapping.start
        )
        if flags & 1 and begin < end:
            yield mapping.start + begin - mapping.offset, end - begin, begin


def _format_branch_samples(stream: Stream) -> Iterator[str]:
    import numpy as np

    entries: list[str] = []
    calls: list[bool] = []
    for branches in stream.branches():
        # System calls have no target. A sample goes on after them, as those of a processor do.
        taken = (branches.kind != BranchKind.NOT_TAKEN) & (branches.target != 0)
        pairs = np.stack([branches.source[taken], branches.target[taken]], axis=1)
        distinct, pair_numbers = np.unique(pairs, axis=0, return_inverse=True)
        texts = [_format_branch_entry(source, target) for source, target in distinct.tolist()]
        entries.extend(texts[number] for number in pair_numbers.ravel().tolist())
        calls.extend(np.isin(branches.kind[taken], _CALLS).tolist())
        begin = 0
        while begin + BRANCHES_PER_SAMPLE < len(entries):
            end = _sample_end(calls, begin)
            yield _format_sample_line(entries[begin:end])
            begin = end - 1
            entries[begin] = _format_branch_entry(0, _target_of_branch_entry(entries[begin]))
        del entries[:begin], calls[:begin]
    if entries:
        yield _format_sample_line(entries)


def _sample_end(calls: list[bool], begin: int) -> int:
    """Return the end of the sample that starts at `begin`: after a branch that is no call, if
    possible.
    """
    for end in range(begin + BRANCHES_PER_SAMPLE, begin + 1, -1):
        if not calls[end - 1]:
            return end
    return begin + BRANCHES_PER_SAMPLE


def _format_branch_entry(source: int, target: int) -> str:
    return f"{source:#x}/{target:#x}/P/-/-/0"


def _target_of_branch_entry(entry: str) -> int:
    return int(entry.split("/")[1], 16)


def _format_sample_line(entries: list[str]) -> str:
    """Return the line of a sample, which is at the target of the latest branch."""
    entries.reverse()
    return f"{_target_of_branch_entry(entries[0]):16x} {' '.join(entries)}"
