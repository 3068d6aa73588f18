"""Applies records about memory (MMAP, COMM, FORK, TEXT_POKE, KSYMBOL) to `image.Images`.

Records with kernel addresses go to the kernel of the host or of a virtual machine; the cpumode of
the record says which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.image import KERNEL_START, Images, machine_of_kernel_mapping
from rtit.perfdata import records as perf
from rtit.perfdata.records import Misc
from rtit.perfdata.system_processes import cr3_of_process

if TYPE_CHECKING:
    from rtit.image.kernel.kernel import Kernel


_PROT_EXEC = 4
_MISC_MMAP_DATA = 1 << 13


def apply_mapping_record(
    images: Images, time: int, record: perf.Record, *, machine: int = 0
) -> None:
    """Apply the next record, in order of time (TSC ticks).

    `machine` is the pid of the virtual machine that the record is of; 0: the host.
    """
    kernel = images.guests.get(machine) if machine else images.kernel
    if isinstance(record, perf.Mmap2 | perf.Mmap):
        _apply_mmap(images, time, record, kernel if machine else None)
    elif isinstance(record, perf.Comm):
        if record.by_exec:
            images.exec(time, record.pid, record.tid)
        else:
            images.set_thread(record.pid, record.tid)
    elif isinstance(record, perf.Fork):
        images.fork(time, record.pid, record.ppid, record.tid, record.ptid)
    elif isinstance(record, perf.Exit):
        if cr3_of_process(record.pid) is not None:
            images.exec(time, record.pid)
    elif isinstance(record, perf.TextPoke):
        sample_id = record.sample_id
        if record.address >= KERNEL_START:
            if kernel is not None:
                kernel.changes.text_poke(time, record.address, record.old, record.new)
        elif sample_id is not None and sample_id.pid is not None:
            images.text_poke(time, sample_id.pid, record.address, record.new)
    elif isinstance(record, perf.Ksymbol):
        if kernel is not None:
            kernel.changes.ksymbol(time, record.address, record.length, record.symbol, record.flags)
    elif isinstance(record, perf.ItraceStart):
        images.set_thread(record.pid, record.tid)


def _apply_mmap(
    images: Images, time: int, record: perf.Mmap | perf.Mmap2, guest_kernel: Kernel | None
) -> None:
    """`guest_kernel`: the kernel of the virtual machine that the record is of; None: the host."""
    if isinstance(record, perf.Mmap2):
        executable, build_id = bool(record.prot & _PROT_EXEC), record.build_id
    else:
        executable, build_id = not record.misc & _MISC_MMAP_DATA, None
    if record.address >= KERNEL_START:
        guests, mode = images.guests, record.misc & Misc.CPUMODE
        if guest_kernel is not None or mode == Misc.GUEST_KERNEL:
            named = guests.get(machine_of_kernel_mapping(record.path, record.pid), guests.get(0))
            kernel = guest_kernel or named
        else:
            kernel = images.kernel if mode == Misc.KERNEL else None
        if kernel is not None:
            area = record.address, record.length, record.pgoff
            kernel.mmap(time, *area, record.path, build_id)
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
