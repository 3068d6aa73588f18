"""How much of what ran: exact counts of a whole recording, by function, file and thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtit.profile.counts import Function, Stat, totals
from rtit.profile.functions import counted
from rtit.profile.gather import profile
from rtit.trace import End
from rtit.x86 import Class

if TYPE_CHECKING:
    from rtit.profile.table import Profile
    from rtit.trace import Stream, Trace


def stat(trace: Trace, streams: Sequence[Stream]) -> Stat:
    """Decode the streams and count. Raises what decoding raises."""
    who = {each for stream in streams for each in stream.whose}
    pids, tids = {pid for pid, _ in who}, {tid for _, tid in who}
    return summed(profile(trace, streams), len(tids), len(pids))


def summed(found: Profile, tids: int, pids: int) -> Stat:
    """The sums of a profile, of so many threads and processes."""
    by_kind = found.transfers
    system_calls = sum(int(each.count[each.kind == Class.SYSCALL].sum()) for each in found.binaries)
    counts = totals(
        found.instructions,
        (by_kind[End.CUT], by_kind[End.CONDITIONAL]),
        (by_kind[End.JUMP], by_kind[End.INDIRECT_JUMP]),
        (by_kind[End.CALL], by_kind[End.INDIRECT_CALL]),
        by_kind[End.RETURN],
        system_calls,
        tids,
        pids,
    )
    threads: Counter[str] = Counter()
    for title, count in found.threads:
        threads[title] += count
    by_function: Counter[Function] = Counter()
    files: Counter[str] = Counter()
    for binary in found.binaries:
        for function, count in counted(binary):
            by_function[function] += count
        files[binary.name] += binary.instructions
    for function, count in found.outside.items():
        by_function[function] += count
        files[function[1]] += count
    rest = found.losses.outside + found.losses.rewritten - found.outside.total()
    if rest > 0:
        by_function["", ""] += rest
        files[""] += rest
    return Stat(counts, by_function, files, threads, found.losses)
