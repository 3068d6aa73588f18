"""Streams that are much of one thing, as recordings: what each makes a decoder keep is as little as
what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

from kernel.writer import KernelWriter
from rtit.packets import encode
from rtit.perfdata import Switches

START = 0x1000
CODE = 1 << 23
"""Bytes of code from START on."""

PSB_PLUS = (
    encode("PSB")
    + encode("TSC", tsc=1 << 20)
    + encode("MODE.Exec", csl=1, csd=0, iflag=0)
    + encode("FUP", ip_bytes=6, payload=START)
    + encode("PSBEND")
)
JUMPS, CALLS, RETURNS = b"\xff\xe0", b"\xff\xd0", b"\xff\xd0\xc3\x90"
"""jmp rax; call rax; call rax, ret, nop: as often as there is room."""


def tip(offset: int) -> bytes:
    """A TIP to so far behind START."""
    return encode("TIP", ip_bytes=4, payload=START + offset)


def _spread(step: int) -> Iterator[bytes]:
    """TIPs to each `step` bytes of the code, then again."""
    places = CODE // step
    # no two that follow each other are near
    return (tip(number * 40503 % places * step) for number in cycle(range(places)))


def _deep() -> Iterator[bytes]:
    """4096 calls, each from another place, and their RETs; the next from other places."""
    for number in cycle(range(CODE // 4)):
        places = [(number * 4096 + each) * 40503 % (CODE // 4) * 4 for each in range(4096)]
        yield from map(tip, places)
        yield from (tip(place + 2) for place in reversed(places))


def _block() -> Iterator[bytes]:
    while True:
        yield encode("BBP", type=4, sz=0)
        yield from (encode("BIP", id=item, sz=0, payload=item << 40) for item in range(17))
        yield encode("BEP", ip=0)


FLOODS: dict[str, tuple[Callable[[], Iterator[bytes]], bytes]] = {
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
            for bits in cycle(range(CODE // 2))
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
            for number in cycle(range(CODE // 2))
        ),
        JUMPS,
    ),
}


def flood(name: str, size: int) -> bytes:
    """About `size` bytes of one of FLOODS, from a PSB+ on."""
    packets, _ = FLOODS[name]
    out = bytearray(PSB_PLUS)
    each = packets()
    while len(out) < size:
        out += b"".join(islice(each, 4096))
    return bytes(out)


@contextmanager
def with_code(
    path: Path, code: bytes, switches: Switches = Switches.NONE, *, kernel: bool = False
) -> Iterator[KernelWriter]:
    """A recording of one thread, to be written on; its code, as often as there is room, is in a
    file beside it.
    """
    file = path.with_suffix(".code")
    file.write_bytes(code * (CODE // len(code)))
    cpuid = "GenuineIntel,6,94,3"
    with KernelWriter(path, config=0x2601, cpuid=cpuid, switches=switches, kernel=kernel) as out:
        out.mmap2(1, 1, 1, START, CODE, 0, 5, 2, 8, 1, 4711, 0, str(file))
        out.itrace_start(1, 1, 2)
        yield out


def recorded(folder: Path, name: str, size: int) -> Path:
    """A recording of one thread; its code is beside it."""
    path = folder / f"{name}.data"
    with with_code(path, FLOODS[name][1]) as out:
        out.auxtrace(1, 1, flood(name, size), None, 3)
    return path
