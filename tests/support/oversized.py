"""Recordings that are much of one kind of packet, sideband record, code or DWARF.

Tests of resource limits read them: `write_oversized(folder, kind, size)` writes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, cycle, islice
from pathlib import Path

from kernel.writer import KernelWriter
from rtit.packets import encode
from rtit.perfdata import ExitStatus, Fault, SwitchRecords
from support.oversized_elf import DWARF_KINDS, ELF_KINDS, write_elf_recording

START = 0x1000
CODE_SIZE = 1 << 23
"""Bytes of code from START on."""
CODE_END = START + CODE_SIZE

PSB_PLUS = (
    encode("PSB")
    + encode("TSC", tsc=1 << 20)
    + encode("MODE.Exec", csl=1, csd=0, iflag=0)
    + encode("FUP", ip_bytes=6, payload=START)
    + encode("PSBEND")
)
JUMPS, CALLS, RETURNS = b"\xff\xe0", b"\xff\xd0", b"\xff\xd0\xc3\x90"
"""Code to be repeated: jmp rax; call rax; call rax, ret, nop."""


def tip(offset: int) -> bytes:
    """Return a TIP to START + `offset`."""
    return encode("TIP", ip_bytes=4, payload=START + offset)


def _spread(step: int) -> Iterator[bytes]:
    """Yield TIPs to every `step`-th byte of the code, without end; no two in a row are near."""
    jumps = CODE_SIZE // step
    return (tip(number * 40503 % jumps * step) for number in cycle(range(jumps)))


def _deep() -> Iterator[bytes]:
    """Yield 4096 nested calls, each from another address, and their RETs, without end."""
    for number in cycle(range(CODE_SIZE // 4)):
        jumps = [(number * 4096 + each) * 40503 % (CODE_SIZE // 4) * 4 for each in range(4096)]
        yield from map(tip, jumps)
        yield from (tip(jump + 2) for jump in reversed(jumps))


def _block() -> Iterator[bytes]:
    while True:
        yield encode("BBP", type=4, sz=0)
        yield from (encode("BIP", id=item, sz=0, payload=item << 40) for item in range(17))
        yield encode("BEP", ip=0)


PACKET_KINDS: dict[str, tuple[Callable[[], Iterator[bytes]], bytes]] = {
    "psb": (lambda: cycle([PSB_PLUS]), JUMPS),
    "pip": (
        lambda: (
            encode("PIP", cr3=number << 12, nr=0) + encode("VMCS", pointer=number << 12)
            for number in cycle(range(1 << 20))
        ),
        JUMPS,
    ),
    "cbr": (lambda: (encode("CBR", ratio=ratio) for ratio in cycle(range(256))), JUMPS),
    "mode": (
        lambda: (
            encode("MODE.Exec", csl=bits & 1, csd=1 - (bits & 1), iflag=0) + tip(bits * 2)
            for bits in cycle(range(CODE_SIZE // 2))
        ),
        JUMPS,
    ),
    "blocks": (_block, JUMPS),
    "evd": (
        lambda: cycle([encode("EVD", type=0, payload=1 << 40) + encode("EVD", type=1, payload=2)]),
        JUMPS,
    ),
    "ptw": (
        lambda: (
            encode("PTW", ip=0, payload_bytes=1, payload=number) for number in cycle(range(1 << 20))
        ),
        JUMPS,
    ),
    "cyc": (lambda: cycle([encode("CYC", cycles=(1 << 61) - 1)]), JUMPS),
    "targets": (lambda: _spread(2), JUMPS),
    "calls": (lambda: _spread(2), CALLS),
    "deep": (_deep, RETURNS),
    "overflow": (
        lambda: (
            encode("OVF") + encode("FUP", ip_bytes=6, payload=START + number * 2)
            for number in cycle(range(CODE_SIZE // 2))
        ),
        JUMPS,
    ),
}


def repeated_packets(kind: str, size: int) -> bytes:
    """Return a PSB+ and about `size` bytes of packets of one of `PACKET_KINDS`."""
    packets = PACKET_KINDS[kind][0]()
    out = bytearray(PSB_PLUS)
    while len(out) < size:
        out += b"".join(islice(packets, 4096))
    return bytes(out)


@contextmanager
def recording_with_code(
    path: Path, code: bytes, switches: SwitchRecords = SwitchRecords.NONE, *, kernel: bool = False
) -> Iterator[KernelWriter]:
    """Open a recording of one thread for writing; a file beside it repeats `code` from START on."""
    file = path.with_suffix(".code")
    file.write_bytes(code * (CODE_SIZE // len(code)))
    cpuid = "GenuineIntel,6,94,3"
    with KernelWriter(path, config=0x2601, cpuid=cpuid, switches=switches, kernel=kernel) as out:
        out.mmap2(1, 1, 1, START, CODE_SIZE, 0, 5, 2, 8, 1, 4711, 0, str(file))
        out.itrace_start(1, 1, 2)
        yield out


PACKETS = PSB_PLUS + tip(2)
LOSSES = PSB_PLUS + (encode("OVF") + encode("FUP", ip_bytes=6, payload=START)) * 400
KERNEL = 0xFFFF_8000_0000_0000
_BATCH = 256
"""Records between two checks of the size."""


def _mapped(out: KernelWriter, time: int, address: int, size: int, path: str) -> None:
    out.mmap2(1, 1, time, address, size, 0, 5, 2, 8, 1, 4711, 0, path)


def _fork_exit(out: KernelWriter, number: int) -> None:
    out.fork(2, 1, 2, 1, 2 * number)
    out.exit(2, 1, 2, 1, 2 * number + 1)


MACHINE, VCPU, EVENT = 500, 501, 77
"""A virtual machine: process of the host, thread that is its CPU, id of its event."""


def _in_guest(write: Callable[[KernelWriter, int], None]) -> Callable[[KernelWriter, int], None]:
    def written(out: KernelWriter, number: int) -> None:
        out.machine_id = EVENT
        write(out, number)
        out.machine_id = None

    return written


def _guest_switch(out: KernelWriter, number: int) -> None:
    """Switch the host's CPU to the machine and back, and between threads of the machine."""
    if number % 8:
        _in_guest(RECORD_KINDS["switch"])(out, number)
    else:
        before, after = ((1, 1), (MACHINE, VCPU)) if number % 16 else ((MACHINE, VCPU), (1, 1))
        out.switch(0, number, before, after)


RECORD_KINDS: dict[str, Callable[[KernelWriter, int], None]] = {
    "comm": lambda out, n: out.comm(1, 1, n, f"name{n}"),
    "comm-process": lambda out, n: out.comm(n + 2, n + 2, n, f"name{n}"),
    "mmap": lambda out, n: _mapped(out, n, START + CODE_SIZE + 4096 * n, 4096, f"/nowhere/file{n}"),
    "mmap-over": lambda out, n: _mapped(
        out, n, START + CODE_SIZE + 4096 * (n % 64), 12288, "//anon"
    ),
    "fork": lambda out, n: out.fork(n + 2, 1, n + 2, 1, n),
    "fork-chain": lambda out, n: out.fork(n + 2, n + 1, n + 2, n + 1, n),
    "fork-exit": _fork_exit,
    "thread": lambda out, n: out.fork(1, 1, n + 2, 1, n),
    "itrace": lambda out, n: out.itrace_start(n + 2, n + 2, n),
    "parents": lambda out, n: out.fork(2, n + 3, 2, n + 3, n),
    "mmap-process": lambda out, n: out.mmap2(
        n + 2, 1, n, START, 4096, 0, 5, 2, 8, 1, 4711, 0, "//anon"
    ),
    "poke": lambda out, n: out.text_poke(1, 1, n, START + 2 * n % CODE_SIZE, JUMPS),
    "aux": lambda out, n: out.aux(1, 1, n, 8 * n, 8, 1),
    "pieces": lambda out, n: out.auxtrace(1, 1, b"\0", None, 3),
    "threads": lambda out, n: out.auxtrace(n + 2, n + 2, PACKETS, None, 3),
    "exit": lambda out, n: out.exit(
        n + 2, 1, n + 2, 1, n, ExitStatus(9, True, True, Fault(1, 1, n))
    ),
    "poke-large": lambda out, n: out.text_poke(1, 1, n, START + n % CODE_SIZE, bytes(1 << 15)),
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
"""By kind, the function that writes record number n."""
RECORD_KINDS |= {
    f"guest-{kind}": _in_guest(RECORD_KINDS[kind])
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
RECORD_KINDS["guest-switch"] = _guest_switch


def write_oversized(folder: Path, kind: str, size: int) -> Path:
    """Write a recording `folder/kind.data` of about `size` bytes of one kind of content.

    `kind` is one of `PACKET_KINDS`, `RECORD_KINDS`, `ELF_KINDS` or `DWARF_KINDS`; "sideband" is
    all of `RECORD_KINDS`. Kinds of packets and records can be joined by "+" and get equal shares:
    records first, alternating, then packets. `size` of an ELF kind is that of the code, of a DWARF
    kind that of the DWARF. The code of the only traced thread is in a file beside the recording.
    """
    path = folder / f"{kind}.data"
    if kind in ELF_KINDS or kind in DWARF_KINDS:
        write_elf_recording(path, kind, size)
    else:
        _write_records_and_packets(path, kind, size)
    return path


def _write_records_and_packets(path: Path, kind: str, size: int) -> None:
    kinds = [*RECORD_KINDS] if kind == "sideband" else kind.split("+")
    packets = [each for each in kinds if each in PACKET_KINDS]
    code = PACKET_KINDS[packets[0]][1] if packets else JUMPS
    on_cpu = any("switch" in each for each in kinds)
    kernel = any(each.startswith(("kernel", "ksymbol")) for each in kinds)
    switches = SwitchRecords.CPU_WIDE if on_cpu else SwitchRecords.NONE
    with recording_with_code(path, code, switches, kernel=kernel) as out:
        if any(each.startswith("guest") for each in kinds):
            out.machine(MACHINE, VCPU, EVENT)
        numbers = {each: count() for each in kinds if each in RECORD_KINDS}
        share = size // len(kinds)
        left = dict.fromkeys(numbers, share)
        while left:
            for each in list(left):
                before = out.size
                for number in islice(numbers[each], _BATCH):
                    RECORD_KINDS[each](out, number)
                left[each] -= out.size - before
                if left[each] <= 0:
                    del left[each]
        for each in packets:
            out.auxtrace(1, 1, repeated_packets(each, share), None, 3)
        if not packets:
            out.auxtrace(1, 1, PACKETS, None, 3)
        if on_cpu:
            out.auxtrace(-1, -1, PACKETS, None, 3, 0)
