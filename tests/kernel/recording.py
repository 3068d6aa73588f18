"""Recordings of the generated machine in the format of `perf record --kcore -a -e intel_pt//`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from kernel import made
from kernel.machine import BPF, BPF_CODE, Machine, Poke, Switch
from kernel.writer import KernelWriter
from rtit.perfdata import SwitchRecords

REF = "_text"
NAMES = (
    *("_text", "_stext", "entry_SYSCALL_64", "do_syscall_64", "schedule", "__switch_to"),
    *("asm_interrupt", "handle_irq", "__fentry__", "helper", "_etext"),
)
BPF_NAME = "bpf_prog_6deef7357e7b4530_made"
KERNEL_SIZE = 0x1000
MODULE_SIZE = 0x3000
MODULE_PATH = "/lib/modules/6.1.0-made/kernel/drivers/made.ko"
PAGE = 0x1000


def write(machine: Machine, path: Path, *, bpf_at: int = 0, bpf_gone: int = 0) -> Path:
    """Write a directory `path` with the recording and copies of the kernel.

    `bpf_at`: time (TSC) at which the BPF program was loaded, 0: before the recording; `bpf_gone`:
    time at which it was unloaded, 0: never.
    """
    path.mkdir()
    trace = machine.trace
    with KernelWriter(
        path / "data",
        config=machine.options,
        cpuid="GenuineIntel,6,94,3",
        switches=SwitchRecords.CPU_WIDE,
        kernel=True,
    ) as out:
        start, kernel = machine.at[REF], machine.at[REF]
        out.kernel_map(start, KERNEL_SIZE, kernel, f"[kernel.kallsyms]{REF}")
        out.kernel_map(made.MODULE, MODULE_SIZE, 0, MODULE_PATH)
        out.ksymbol(bpf_at, BPF, len(BPF_CODE), BPF_NAME)
        for thread in machine.threads:
            built = made.user(thread.program)
            out.comm(thread.pid, thread.tid, 1, f"made-{thread.program}", by_exec=True)
            size = (len(next(iter(built.code.values()))) + PAGE - 1) & -PAGE
            mapping = (made.USER_AT, size, _offset(built.path), 5, 2, 0, 0, 0, 0)
            out.mmap2(thread.pid, thread.tid, 1, *mapping, str(built.path))
        first = machine.threads[0]
        out.itrace_start(first.pid, first.tid, 2)
        if bpf_gone:
            out.ksymbol(bpf_gone, BPF, len(BPF_CODE), BPF_NAME, gone=True)
        changes: list[Poke | Switch] = [*machine.pokes, *machine.switches]
        for each in sorted(changes, key=attrgetter("time")):
            if isinstance(each, Switch):
                one, two = each.before, each.after
                out.switch(
                    0, each.time, (one.pid, one.tid), (two.pid, two.tid), each.back - each.time
                )
            else:
                out.kernel_poke(each.time, each.address, each.old, each.new)
        out.auxtrace(-1, -1, trace, None, machine.time, cpu=0)
    write_copies(machine, path / "kcore_dir")
    return path


def write_copies(machine: Machine, folder: Path) -> None:
    """Write the copies of `perf record --kcore`, with the state at the start of the machine."""
    folder.mkdir()
    (folder / "kcore").write_bytes(kcore(machine))
    (folder / "kallsyms").write_text(kallsyms(machine))
    size = MODULE_SIZE
    (folder / "modules").write_text(f"made {size} 0 - Live {made.MODULE:#x}\n")


def kallsyms(machine: Machine) -> str:
    """Return all symbols in the format of /proc/kallsyms."""
    lines = [(machine.at[name], f"T {name}") for name in NAMES]
    lines += [
        (made.MODULE, "t made_open\t[made]"),
        (made.COLD, "t made_cold\t[made]"),
        (BPF, f"t {BPF_NAME}\t[bpf]"),
    ]
    return "".join(f"{address:016x} {text}\n" for address, text in sorted(lines))


def kcore(machine: Machine) -> bytes:
    """Return memory as a core file: the kernel, the module, and after it the BPF program."""
    parts = []
    for start, size in ((machine.at[REF], KERNEL_SIZE), (made.MODULE, MODULE_SIZE + PAGE)):
        part = bytearray(size)
        for at, code in (*machine.booted.items(), (BPF, BPF_CODE)):
            if start <= at < start + size:
                part[at - start : at - start + len(code)] = code
        parts.append((start, bytes(part)))
    return core_file(parts)


def core_file(parts: Sequence[tuple[int, bytes]]) -> bytes:
    """Return a core file with these parts of memory: address and bytes, whole pages."""
    header = struct.pack(
        "<4s5B7x HHI QQQ I 6H",
        *(b"\x7fELF", 2, 1, 1, 0, 0, 4, 62, 1, 0, 64, 0, 0, 64, 56, len(parts), 0, 0, 0),
    )
    heads, content, offset = b"", b"", PAGE
    for start, part in parts:
        size = len(part)
        heads += struct.pack("<II6Q", 1, 7, offset, start, 0, size, size, PAGE)
        content += part
        offset += size
    return (header + heads).ljust(PAGE, b"\0") + content


def _offset(path: Path) -> int:
    """Return the offset of the code in a program's file."""
    from rtit._core import ElfFile

    return next(offset for offset, _, size, _, flags in ElfFile(path).segments if flags & 1)
