"""Address spaces over time: records as what happens to the memory of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.image import UPPER, Images, machine_of
from rtit.perfdata import records as perf
from rtit.perfdata.records import Misc

if TYPE_CHECKING:
    from rtit.image import Kernel


_PROT_EXEC = 4
_MISC_MMAP_DATA = 1 << 13


def apply(images: Images, time: int, record: perf.Record, *, machine: int = 0) -> None:
    """Take the next record, in order of time (TSC ticks), of the host or of the virtual machine
    that is process `machine`.
    """
    kernel = images.guests.get(machine) if machine else images.kernel
    if isinstance(record, perf.Mmap2 | perf.Mmap):
        _mmap(images, time, record, kernel if machine else None)
    elif isinstance(record, perf.Comm):
        if record.by_exec:
            images.exec(time, record.pid, record.tid)
        else:
            images.thread(record.pid, record.tid)
    elif isinstance(record, perf.Fork):
        images.fork(time, record.pid, record.ppid, record.tid, record.ptid)
    elif isinstance(record, perf.TextPoke):
        owner = record.sample_id
        if record.address >= UPPER:
            if kernel is not None:
                kernel.changes.text_poke(time, record.address, record.old, record.new)
        elif owner is not None and owner.pid is not None:
            images.text_poke(time, owner.pid, record.address, record.new)
    elif isinstance(record, perf.Ksymbol):
        if kernel is not None:
            kernel.changes.ksymbol(time, record.address, record.length, record.symbol, record.flags)
    elif isinstance(record, perf.ItraceStart):
        images.thread(record.pid, record.tid)


def _mmap(images: Images, time: int, record: perf.Mmap | perf.Mmap2, inside: Kernel | None) -> None:
    """`inside`: the kernel of the virtual machine whose record it is, if it is one's."""
    if isinstance(record, perf.Mmap2):
        executable, build_id = bool(record.prot & _PROT_EXEC), record.build_id
    else:
        executable, build_id = not record.misc & _MISC_MMAP_DATA, None
    if record.address >= UPPER:
        guests, mode = images.guests, record.misc & Misc.CPUMODE
        if inside is not None or mode == Misc.GUEST_KERNEL:
            whose = inside or guests.get(machine_of(record.path, record.pid), guests.get(0))
        else:
            whose = images.kernel if mode == Misc.KERNEL else None
        if whose is not None:
            place = record.address, record.length, record.pgoff
            whose.mmap(time, *place, record.path, build_id)
        return
    images.mmap(
        time,
        record.pid,
        record.tid,
        record.address,
        record.length,
        record.pgoff,
        record.path,
        build_id=build_id,
        executable=executable,
    )
