"""Random packets, with times, of a program that runs in three blocks, as a recording.

The clocks are known: core cycles at a rate that changes (with a CBR, or without a packet), the
TSC, and the crystal clock. The packets are random: CYCs with a threshold, MTCs of which some
are lost, TSCs that are late, PSB+, overflows, and times without tracing or without power.
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
"""Ratio of TSC to bus clock; TSC ticks of a crystal clock."""


def write_random_recording(seed: int, folder: Path) -> Path:
    """Write and return perf.data, with the code beside it."""
    packets = _RandomPackets(Random(seed))
    # ELF64: perf takes the mode of the code from this header
    elf = bytearray(b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + bytes(0x100 - 16))
    struct.pack_into("<HHI", elf, 16, 2, 62, 1)
    struct.pack_into("<HHHHHH", elf, 52, 64, 56, 0, 64, 0, 0)
    code, raw, maps = (folder / name for name in ("code", "pt.bin", "code.maps"))
    code.write_bytes(bytes(elf) + CODE.ljust(0x1000 - 0x100, b"\xcc"))
    raw.write_bytes(packets.stream)
    maps.write_text(f"{BASE:x}-{BASE + 0x1000:x} r-xp 00000000 00:00 0 {code}\n")
    options = ["--mtc-freq", str(packets.mtc_freq), "--nom-freq", str(NOMINAL)]
    data = folder / "perf.data"
    arguments = ["--raw", str(raw), "--maps", str(maps), "-o", str(data)]
    assert main(["convert", *arguments, *options, "--cpuid-15", f"2,{2 * TICKS}"]) == 0
    return data


class _RandomPackets:
    """Makes packets, and keeps the state after the last one."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.mtc_freq = random.choice([0, 3, 6, 9, 10])
        self._threshold = random.choice([0, 0, 8, 16, 64, 256])
        self._step = random.choice([4, 40, 400])
        self._tsc = float(random.randrange(1 << 30, 1 << random.choice([31, 45, 54])))
        self._ratio = random.choice([5, 7, 10, 11, 16])
        self._rate = NOMINAL / self._ratio
        self._cycles = self._uncounted = 0
        self._ip, self._enabled = A, True
        self._mtc = self._crystal >> self.mtc_freq
        self.stream = self._sync()
        for _ in range(300):
            self.stream += self._next_packets()

    @property
    def _crystal(self) -> int:
        return int(self._tsc) // TICKS

    def _next_packets(self) -> bytes:
        random, found = self._random, self._pass_time()
        kind = random.random()
        if not self._enabled:
            if kind < 0.5:
                return found
            self._enabled = True
            found += self._tsc_packets() if random.random() < 0.7 else b""
            self._ip = random.choice([A, B, C])
            return found + self._cyc() + _ip("TIP.PGE", self._ip)
        if kind < 0.03:
            return found + self._cyc(0.5) + self._sync()
        if kind < 0.05:
            self._ip = random.choice([A, B, C])
            return found + encode("OVF") + self._cyc(0.5) + _ip("FUP", self._ip)
        if kind < 0.08:
            return found + self._change_rate()
        if kind < 0.1:
            return found + self._cyc(0.5) + self._tsc_packets()
        if kind < 0.11:
            power = [encode("EXSTOP", ip=0), encode("PWRX", last=1, deepest=1, wake=1)]
            return found + random.choice(power)
        if kind < 0.13:
            return found + self._disable_tracing()
        return found + self._execute()

    def _pass_time(self) -> bytes:
        """Let some cycles pass; return the MTCs of that time."""
        random, found = self._random, b""
        for _ in range(random.randint(1, 3)):
            cycles = random.randint(0, self._step)
            self._cycles += cycles
            self._uncounted += cycles
            self._tsc += cycles * self._rate
            mtc = self._crystal >> self.mtc_freq
            if mtc != self._mtc and random.random() < 0.97:
                found += self._cyc(0.9) + encode("MTC", ctc=mtc & 0xFF)
            self._mtc = mtc
        return found

    def _cyc(self, probability: float = 1.0) -> bytes:
        if self._uncounted < self._threshold or self._random.random() > probability:
            return b""
        cycles, self._uncounted = self._uncounted, 0
        return encode("CYC", cycles=cycles)

    def _tsc_packets(self) -> bytes:
        """Return a TSC and a TMA."""
        late = self._random.choice([0, 0, 0, 5, 300])
        tsc = int(self._tsc) - late
        ctc, fast = divmod(tsc, TICKS)
        found = encode("TSC", tsc=tsc & (1 << 56) - 1)
        if self._random.random() < 0.95:
            found += encode("TMA", ctc=ctc & 0xFFFF, fast_counter=fast)
        self._mtc = ctc >> self.mtc_freq
        return found

    def _sync(self) -> bytes:
        found = encode("PSB") + self._cyc(0.2) + self._tsc_packets() + self._cyc(0.1)
        found += encode("CBR", ratio=self._ratio) + encode("MODE.Exec", csl=1, csd=0, iflag=0)
        return found + _ip("FUP", self._ip) + encode("PSBEND")

    def _change_rate(self) -> bytes:
        """Change the core rate, with or without a CBR."""
        random = self._random
        self._rate = NOMINAL / self._ratio * random.uniform(0.6, 1.4)
        if random.random() < 0.3:
            return b""
        self._ratio = random.choice([3, 5, 10, 15])
        self._rate = NOMINAL / self._ratio
        return self._cyc(0.5) + encode("CBR", ratio=self._ratio)

    def _disable_tracing(self) -> bytes:
        """Interrupt the program, which disables tracing."""
        self._enabled = False
        found = _ip("FUP", self._ip) + encode("TIP.PGD", ip_bytes=0)
        return found + (encode("TraceStop") if self._random.random() < 0.1 else b"")

    def _execute(self) -> bytes:
        if self._ip == B:
            self._ip = self._random.choice([A, B, C])
            return self._cyc() + _ip("TIP", self._ip)
        bits = "T" * self._random.randint(0, 5) + self._random.choice("TN")
        self._ip = B if bits.endswith("N") else C
        return self._cyc() + encode("TNT", bits=bits)


def _ip(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)
