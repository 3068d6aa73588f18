"""What ran in no file of a process, by name: the kernel, code that programs made, the vdso."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rtit.image import UPPER, has_file
from rtit.trace.functions import functions

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace

Function = tuple[str, str]
"""The name, "" for none, and that of the module it is in, "" for none."""


def outside(trace: Trace, stream: Stream) -> Counter[Function]:
    """Instructions of a stream by function, of those that are in no file of its process. Decodes
    the stream once more; raises what decoding raises.
    """
    files = {
        each.path
        for tid in (stream.tid, *stream.pids[1:])
        for each in trace.images.mappings(tid)
        if has_file(each.path) and each.start < UPPER
    }
    found: Counter[Function] = Counter()
    for name, path, count in functions(stream, trace.symbols):
        if path not in files:
            found[name, path.rpartition("/")[2]] += count
    stream.forget()
    return found


def name_at(trace: Trace, tid: int, address: int, time: int) -> Function:
    """Of the function at an address that is in no file."""
    location = trace.symbols.lookup(tid, time, address)
    return location.name, location.module.rpartition("/")[2]
