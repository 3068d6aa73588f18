"""Random packets of a program that goes round in three blocks, as a recording.

The clock is known: core cycles at a rate that changes (by a CBR, or with nothing that tells of it),
the TSC, the crystal. What is told of it is drawn: CYCs with a threshold, MTCs of which some are
lost, TSCs that are somewhat late, PSB+ between, overflows, times without tracing or without power.
"""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

from rtit.cli.main import main
from rtit.packets import encode

BASE = 0x400000
A, B, C = BASE + 0x100, BASE + 0x103, BASE + 0x106
# A: nop; jne C   B: nop; jmp rax   C: nop; jmp A
CODE = bytes.fromhex("90 75 03 90 ff e0 90 eb f7")
NOMINAL, TICKS = 10, 40
"""The TSC by the bus clock; ticks of a crystal clock."""


def recording(seed: int, folder: Path) -> Path:
    """Writes it: perf.data with the code beside it."""
    made = _Made(Random(seed))
    # ELF64: perf takes the mode of the code from there
    elf = bytearray(b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + bytes(0x100 - 16))
    struct.pack_into("<HHI", elf, 16, 2, 62, 1)
    struct.pack_into("<HHHHHH", elf, 52, 64, 56, 0, 64, 0, 0)
    code, raw, maps = (folder / name for name in ("code", "pt.bin", "code.maps"))
    code.write_bytes(bytes(elf) + CODE.ljust(0x1000 - 0x100, b"\xcc"))
    raw.write_bytes(made.stream)
    maps.write_text(f"{BASE:x}-{BASE + 0x1000:x} r-xp 00000000 00:00 0 {code}\n")
    options = ["--mtc-freq", str(made.mtc_freq), "--nom-freq", str(NOMINAL)]
    data = folder / "perf.data"
    arguments = ["--raw", str(raw), "--maps", str(maps), "-o", str(data)]
    assert main(["convert", *arguments, *options, "--cpuid-15", f"2,{2 * TICKS}"]) == 0
    return data


class _Made:
    """The packets, and how things are behind the last of them."""

    def __init__(self, drawn: Random) -> None:
        self._drawn = drawn
        self.mtc_freq = drawn.choice([0, 3, 6, 9, 10])
        self._threshold = drawn.choice([0, 0, 8, 16, 64, 256])
        self._step = drawn.choice([4, 40, 400])
        self._tsc = float(drawn.randrange(1 << 30, 1 << drawn.choice([31, 45, 54])))
        self._ratio = drawn.choice([5, 7, 10, 11, 16])
        self._rate = NOMINAL / self._ratio
        self._cycles = self._uncounted = 0
        self._ip, self._on = A, True
        self._mtc = self._crystal >> self.mtc_freq
        self.stream = self._sync()
        for _ in range(300):
            self.stream += self._one()

    @property
    def _crystal(self) -> int:
        return int(self._tsc) // TICKS

    def _one(self) -> bytes:
        drawn, found = self._drawn, self._passed()
        kind = drawn.random()
        if not self._on:
            if kind < 0.5:
                return found
            self._on = True
            found += self._told() if drawn.random() < 0.7 else b""
            self._ip = drawn.choice([A, B, C])
            return found + self._cyc() + _ip("TIP.PGE", self._ip)
        if kind < 0.03:
            return found + self._cyc(0.5) + self._sync()
        if kind < 0.05:
            self._ip = drawn.choice([A, B, C])
            return found + encode("OVF") + self._cyc(0.5) + _ip("FUP", self._ip)
        if kind < 0.08:
            return found + self._changed()
        if kind < 0.1:
            return found + self._cyc(0.5) + self._told()
        if kind < 0.11:
            power = [encode("EXSTOP", ip=0), encode("PWRX", last=1, deepest=1, wake=1)]
            return found + drawn.choice(power)
        if kind < 0.13:
            return found + self._off()
        return found + self._ran()

    def _passed(self) -> bytes:
        """Some cycles, with the MTCs of that time."""
        drawn, found = self._drawn, b""
        for _ in range(drawn.randint(1, 3)):
            cycles = drawn.randint(0, self._step)
            self._cycles += cycles
            self._uncounted += cycles
            self._tsc += cycles * self._rate
            mtc = self._crystal >> self.mtc_freq
            if mtc != self._mtc and drawn.random() < 0.97:
                found += self._cyc(0.9) + encode("MTC", ctc=mtc & 0xFF)
            self._mtc = mtc
        return found

    def _cyc(self, likely: float = 1.0) -> bytes:
        if self._uncounted < self._threshold or self._drawn.random() > likely:
            return b""
        cycles, self._uncounted = self._uncounted, 0
        return encode("CYC", cycles=cycles)

    def _told(self) -> bytes:
        """TSC and TMA."""
        late = self._drawn.choice([0, 0, 0, 5, 300])
        tsc = int(self._tsc) - late
        ctc, fast = divmod(tsc, TICKS)
        found = encode("TSC", tsc=tsc & (1 << 56) - 1)
        if self._drawn.random() < 0.95:
            found += encode("TMA", ctc=ctc & 0xFFFF, fast_counter=fast)
        self._mtc = ctc >> self.mtc_freq
        return found

    def _sync(self) -> bytes:
        found = encode("PSB") + self._cyc(0.2) + self._told() + self._cyc(0.1)
        found += encode("CBR", ratio=self._ratio) + encode("MODE.Exec", csl=1, csd=0, iflag=0)
        return found + _ip("FUP", self._ip) + encode("PSBEND")

    def _changed(self) -> bytes:
        """Another rate, which CBR tells of or not."""
        drawn = self._drawn
        self._rate = NOMINAL / self._ratio * drawn.uniform(0.6, 1.4)
        if drawn.random() < 0.3:
            return b""
        self._ratio = drawn.choice([3, 5, 10, 15])
        self._rate = NOMINAL / self._ratio
        return self._cyc(0.5) + encode("CBR", ratio=self._ratio)

    def _off(self) -> bytes:
        """Something interrupts, and tracing goes off."""
        self._on = False
        found = _ip("FUP", self._ip) + encode("TIP.PGD", ip_bytes=0)
        return found + (encode("TraceStop") if self._drawn.random() < 0.1 else b"")

    def _ran(self) -> bytes:
        if self._ip == B:
            self._ip = self._drawn.choice([A, B, C])
            return self._cyc() + _ip("TIP", self._ip)
        bits = "T" * self._drawn.randint(0, 5) + self._drawn.choice("TN")
        self._ip = B if bits.endswith("N") else C
        return self._cyc() + encode("TNT", bits=bits)


def _ip(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)
