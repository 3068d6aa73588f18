"""Random programs, run here and traced by a small encoder, decode to the executed path.

The encoder shares only the packet table with the trace unit and the decoder.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.packets import encode, encode_tnt

core = pytest.importorskip("rtit._core", reason="the native module is not built")

BASE = 0x7F0000001000
SIZES = {
    "nop": 1,
    "jcc": 6,
    "jmp": 5,
    "call": 5,
    "call0": 5,
    "jmpi": 2,
    "calli": 2,
    "ret": 1,
    "syscall": 2,
}
WORD = (1 << 64) - 1
K = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Instruction:
    ip: int
    kind: str
    target: int

    @property
    def next(self) -> int:
        return self.ip + SIZES[self.kind]

    def code(self) -> bytes:
        displacement = (self.target - self.next & 0xFFFFFFFF).to_bytes(4, "little")
        return {
            "nop": b"\x90",
            "jcc": b"\x0f\x85" + displacement,
            "jmp": b"\xe9" + displacement,
            "call": b"\xe8" + displacement,
            "call0": b"\xe8\0\0\0\0",
            "jmpi": b"\xff\xe0",
            "calli": b"\xff\xd0",
            "ret": b"\xc3",
            "syscall": b"\x0f\x05",
        }[self.kind]


def program(random: Random, size: int) -> list[Instruction]:
    """Direct jumps and calls go forward only, so that every loop needs packets."""
    kinds = [random.choice(list(SIZES)) for _ in range(size)] + ["jmpi"]
    ips = [BASE]
    for kind in kinds:
        ips.append(ips[-1] + SIZES[kind])
    made = []
    for index, kind in enumerate(kinds):
        first = 0 if kind == "jcc" else index + 1
        made.append(
            Instruction(
                ips[index], kind, ips[random.randrange(first, size + 1)] if index < size else 0
            )
        )
    return made


@dataclass
class Tracer:
    """Writes packets for events; knows IP compression, RET compression, TNT forms and deferral."""

    random: Random
    long_tnt: bool
    defer: bool
    compress: bool
    out: bytearray = field(default_factory=bytearray)
    bits: list[int] = field(default_factory=list)
    tips: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    last_ip: int = 0

    def flush(self) -> None:
        size = 47 if self.long_tnt else 6
        while self.bits:
            part, self.bits = self.bits[:size], self.bits[size:]
            value = int("".join(map(str, part)), 2)
            self.out += encode_tnt(len(part), value, long=self.long_tnt)
        tips, self.tips = self.tips, []
        for ip in tips:
            self.put("TIP", ip)

    def put(self, name: str, ip: int | None) -> None:
        if ip is None:
            self.out += encode(name, ip_bytes=0)
            return
        choices = [(6, WORD)]
        if ip >> 48 == self.last_ip >> 48:
            choices.append((4, (1 << 48) - 1))
        if ip >> 32 == self.last_ip >> 32:
            choices.append((2, (1 << 32) - 1))
        if ip >> 16 == self.last_ip >> 16:
            choices.append((1, 0xFFFF))
        ip_bytes, mask = self.random.choice(choices)
        self.out += encode(name, ip_bytes=ip_bytes, payload=ip & mask)
        self.last_ip = ip

    def result(self, taken: int) -> None:
        self.bits.append(taken)
        if len(self.bits) == (47 if self.long_tnt else 6) or (
            not self.defer and self.random.random() < 0.2
        ):
            self.flush()

    def tip(self, ip: int) -> None:
        if self.defer and self.bits:
            self.tips.append(ip)
        else:
            self.flush()
            self.put("TIP", ip)

    def push(self, ip: int) -> None:
        self.calls = [*self.calls[-63:], ip]

    def ret(self, ip: int) -> None:
        expected = self.calls.pop() if self.calls else None
        if self.compress and expected == ip:
            self.result(1)
        else:
            self.flush()
            self.put("TIP", ip)

    def psb(self, ip: int | None) -> None:
        self.flush()
        self.last_ip = 0
        self.calls = []
        self.out += encode("PSB") + b"\x99\x01"
        if ip is not None:
            self.put("FUP", ip)
        self.out += encode("PSBEND")

    def on(self, ip: int) -> None:
        self.calls = []
        self.put("TIP.PGE", ip)

    def off(self) -> None:
        self.flush()
        self.put("TIP.PGD", None)

    def event(self, ip: int, target: int | None) -> None:
        self.flush()
        self.put("FUP", ip)
        self.put("TIP" if target is not None else "TIP.PGD", target)

    def overflow(self) -> None:
        """Lose the pending packets."""
        self.bits, self.tips, self.calls = [], [], []
        self.out += encode("OVF")


def run(random: Random, code: dict[int, Instruction], tracer: Tracer, steps: int) -> list[int]:
    """Execute with random outcomes; return the IPs that the trace shows."""
    seen: list[int] = []
    stack: list[int] = []
    ips = list(code)
    ip = random.choice(ips)
    tracer.psb(None)
    tracer.on(ip)
    for _ in range(steps):
        chance = random.random()
        if chance < 0.02:
            tracer.psb(ip)
        elif chance < 0.04:
            target = random.choice(ips)
            tracer.event(ip, target)
            ip = target
        elif chance < 0.06:
            tracer.event(ip, None)
            ip = random.choice([ip, random.choice(ips)])
            tracer.on(ip)
        elif chance < 0.07:
            tracer.flush()
            tracer.put("FUP", ip)
            tracer.put("TIP", ip)
            tracer.overflow()
            tracer.put("FUP", ip)
        one = code[ip]
        seen.append(ip)
        ip = one.next
        match one.kind:
            case "jcc":
                taken = random.randrange(2)
                tracer.result(taken)
                ip = one.target if taken else ip
            case "jmp":
                ip = one.target
            case "call":
                stack.append(ip)
                if one.target != ip:
                    tracer.push(ip)
                ip = one.target
            case "jmpi":
                ip = random.choice(ips)
                tracer.tip(ip)
            case "calli":
                stack.append(ip)
                tracer.push(ip)
                ip = random.choice(ips)
                tracer.tip(ip)
            case "ret":
                ip = stack.pop() if stack and random.random() < 0.8 else random.choice(ips)
                tracer.ret(ip)
            case "syscall":
                tracer.off()
                ip = random.choice([ip, random.choice(ips)])
                tracer.on(ip)
    tracer.event(ip, None)
    return seen


def random_code(ip: int) -> int:
    x = (ip ^ ip >> 29) * 0xBF58476D1CE4E5B9 & WORD
    return x ^ x >> 32


def branch_chain(ips: list[int]) -> int:
    value = 0
    for ip in ips:
        value = (value * K + random_code(ip)) & WORD
    return value


@pytest.mark.spec("DEC-003", "DTIP-002", "RET-005", "TIP-003", "TIP-004", "PGE-006")
@given(
    st.integers(0, WORD),
    st.integers(1, 60),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_decoded_path_equals_executed_path(
    seed: int, size: int, long_tnt: bool, defer: bool, compress: bool
) -> None:
    random = Random(seed)
    code = {one.ip: one for one in program(random, size)}
    tracer = Tracer(random, long_tnt, defer, compress)
    seen = run(random, code, tracer, 400)
    stream = bytes(tracer.out)
    space = core.Space()
    space.map(0, BASE, b"".join(one.code() for one in code.values()))

    flow = core.StreamDecoder(stream, space)
    ips = array("Q")
    lengths = b""
    while (part := flow.instructions(50)) is not None:
        ips.extend(part["ip"])
        lengths += part["size"]
    assert list(ips) == seen
    assert list(lengths) == [SIZES[code[ip].kind] for ip in seen]
    assert {row[3] for row in flow.ledger()} <= {None, "loss reported by hardware"}

    counts = flow.counts()
    kinds = [code[ip].kind for ip in seen]
    assert counts["conditional"] == kinds.count("jcc")
    assert counts["returns"] == kinds.count("ret")
    assert counts["indirect"] == sum(kind in ("jmpi", "calli", "syscall") for kind in kinds)

    flow = core.StreamDecoder(stream, space)
    at = value = 0
    while (runs := flow.runs(10)) is not None:
        starts, numbers, hashes = array("Q", runs[0]), array("I", runs[1]), array("Q", runs[2])
        for start, number, own in zip(starts, numbers, hashes, strict=True):
            assert start == seen[at]
            at += number
            value = (value * pow(K, number, 1 << 64) + own) & WORD
    assert (at, value) == (len(seen), branch_chain(seen))


@given(st.integers(0, WORD), st.integers(1, 60))
def test_rows_are_straight_runs_of_code(seed: int, size: int) -> None:
    random = Random(seed)
    code = {one.ip: one for one in program(random, size)}
    tracer = Tracer(random, False, False, True)
    seen = run(random, code, tracer, 200)
    space = core.Space()
    space.map(0, BASE, b"".join(one.code() for one in code.values()))
    flow = core.StreamDecoder(bytes(tracer.out), space)
    at = 0
    ends = {
        "jcc": "conditional",
        "jmp": "jump",
        "call": "call",
        "call0": "call",
        "jmpi": "indirect jump",
    }
    ends |= {"calli": "indirect call", "ret": "return", "syscall": "syscall"}
    while (rows := flow.rows(5)) is not None:
        columns = [
            array("Q", rows["start"]),
            array("I", rows["instructions"]),
            array("Q", rows["last"]),
        ]
        for start, number, last, end in zip(*columns, rows["end"], strict=True):
            one = seen[at : at + number]
            assert (one[0], one[-1]) == (start, last)
            assert [code[ip].next for ip in one[:-1]] == one[1:]  # in memory order
            name = flow.ENDS[end]
            assert name in (ends.get(code[last].kind), "event", "lost")
            at += number
    assert at == len(seen)
