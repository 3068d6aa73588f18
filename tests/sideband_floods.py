"""Recordings that are much of one kind of sideband record beside a few packets, or of several."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice
from pathlib import Path

from floods import CODE, FLOODS, JUMPS, PSB_PLUS, START, flood, tip, with_code
from kernel.writer import KernelWriter
from rtit.packets import encode
from rtit.perfdata import Ending, Fault, Switches

PACKETS = PSB_PLUS + tip(2)
LOSSES = PSB_PLUS + (encode("OVF") + encode("FUP", ip_bytes=6, payload=START)) * 400
KERNEL = 0xFFFF_8000_0000_0000
_AT_ONCE = 256
"""Records between two looks at how many bytes there are."""


def _mapped(out: KernelWriter, time: int, address: int, size: int, path: str) -> None:
    out.mmap2(1, 1, time, address, size, 0, 5, 2, 8, 1, 4711, 0, path)


def _fork_exit(out: KernelWriter, number: int) -> None:
    out.fork(2, 1, 2, 1, 2 * number)
    out.exit(2, 1, 2, 1, 2 * number + 1)


MACHINE, VCPU, EVENT = 500, 501, 77
"""A process of the host, the thread of it that is a CPU of a virtual machine, an event of that."""


def _in_guest(write: Callable[[KernelWriter, int], None]) -> Callable[[KernelWriter, int], None]:
    def written(out: KernelWriter, number: int) -> None:
        out.machine_id = EVENT
        write(out, number)
        out.machine_id = None

    return written


def _guest_turns(out: KernelWriter, number: int) -> None:
    """The host's CPU has the machine, and that its threads by turns."""
    if number % 8:
        _in_guest(SIDEBAND["switch"])(out, number)
    else:
        before, after = ((1, 1), (MACHINE, VCPU)) if number % 16 else ((MACHINE, VCPU), (1, 1))
        out.switch(0, number, before, after)


SIDEBAND: dict[str, Callable[[KernelWriter, int], None]] = {
    "comm": lambda out, n: out.comm(1, 1, n, f"name{n}"),
    "comm-process": lambda out, n: out.comm(n + 2, n + 2, n, f"name{n}"),
    "mmap": lambda out, n: _mapped(out, n, START + CODE + 4096 * n, 4096, f"/nowhere/file{n}"),
    "mmap-over": lambda out, n: _mapped(out, n, START + CODE + 4096 * (n % 64), 12288, "//anon"),
    "fork": lambda out, n: out.fork(n + 2, 1, n + 2, 1, n),
    "fork-chain": lambda out, n: out.fork(n + 2, n + 1, n + 2, n + 1, n),
    "fork-exit": _fork_exit,
    "thread": lambda out, n: out.fork(1, 1, n + 2, 1, n),
    "itrace": lambda out, n: out.itrace_start(n + 2, n + 2, n),
    "parents": lambda out, n: out.fork(2, n + 3, 2, n + 3, n),
    "mmap-process": lambda out, n: out.mmap2(
        n + 2, 1, n, START, 4096, 0, 5, 2, 8, 1, 4711, 0, "//anon"
    ),
    "poke": lambda out, n: out.text_poke(1, 1, n, START + 2 * n % CODE, JUMPS),
    "aux": lambda out, n: out.aux(1, 1, n, 8 * n, 8, 1),
    "pieces": lambda out, n: out.auxtrace(1, 1, b"\0", None, 3),
    "threads": lambda out, n: out.auxtrace(n + 2, n + 2, PACKETS, None, 3),
    "exit": lambda out, n: out.exit(n + 2, 1, n + 2, 1, n, Ending(9, True, True, Fault(1, 1, n))),
    "poke-large": lambda out, n: out.text_poke(1, 1, n, START + n % CODE, bytes(1 << 15)),
    "kernel-map": lambda out, n: out.kernel_map(KERNEL + 4096 * n, 4096, 0, f"[module{n}]"),
    "kernel-poke": lambda out, n: out.kernel_poke(n, KERNEL + n, JUMPS, b"\x90\x90"),
    "ksymbol": lambda out, n: out.ksymbol(n, KERNEL + 64 * n, 64, f"bpf_{n}"),
    "ksymbol-gone": lambda out, n: out.ksymbol(n, KERNEL, 64, "bpf", gone=n % 2 > 0),
    "switch": lambda out, n: out.switch(0, n, (1, 1 + n % 2), (1, 1 + (n + 1) % 2)),
    "switch-threads": lambda out, n: out.switch(0, n, (1, n + 2), (1, n + 3)),
    "switch-cpus": lambda out, n: out.switch(n, n, (1, 1), (2, 2)),
    "lossy-threads": lambda out, n: out.auxtrace(n + 2, n + 2, LOSSES, None, 3),
    "cpus": lambda out, n: out.auxtrace(-1, -1, PACKETS, None, 3, n),
}
"""What to write as record number n."""
SIDEBAND |= {
    f"guest-{kind}": _in_guest(SIDEBAND[kind])
    for kind in (
        "comm-process",
        "mmap",
        "mmap-process",
        "fork",
        "fork-exit",
        "poke",
        "switch-threads",
    )
}
SIDEBAND["guest-switch"] = _guest_turns


def recorded(path: Path, size: int) -> Path:
    """Writes a recording of about `size` bytes; its name without the suffix says of what: kinds of
    SIDEBAND and FLOODS, joined by +, which have equal shares, or sideband, which is all of
    SIDEBAND. Records take turns, packets come
    last. The code of its one traced thread is beside it.
    """
    kinds = [*SIDEBAND] if path.stem == "sideband" else path.stem.split("+")
    packets = [each for each in kinds if each in FLOODS]
    code = FLOODS[packets[0]][1] if packets else JUMPS
    on_cpu = any("switch" in each for each in kinds)
    kernel = any(each.startswith(("kernel", "ksymbol")) for each in kinds)
    switches = Switches.WIDE if on_cpu else Switches.NONE
    with with_code(path, code, switches, kernel=kernel) as out:
        if any(each.startswith("guest") for each in kinds):
            out.machine(MACHINE, VCPU, EVENT)
        numbers = {each: count() for each in kinds if each in SIDEBAND}
        share = size // len(kinds)
        left = dict.fromkeys(numbers, share)
        while left:
            for each in list(left):
                before = out.size
                for number in islice(numbers[each], _AT_ONCE):
                    SIDEBAND[each](out, number)
                left[each] -= out.size - before
                if left[each] <= 0:
                    del left[each]
        for each in packets:
            out.auxtrace(1, 1, flood(each, share), None, 3)
        if not packets:
            out.auxtrace(1, 1, PACKETS, None, 3)
        if on_cpu:
            out.auxtrace(-1, -1, PACKETS, None, 3, 0)
    return path
