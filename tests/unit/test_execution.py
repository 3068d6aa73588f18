"""Random programs on a random processor: whatever the settings, the trace says what ran.

A program is laid out in memory once; a run takes random turns in it. The decoder here reads packets
by the binding rules of section 33.4.2 and shares nothing with the unit but the packet table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtit.packets import Packet, packets
from rtit.processor import Arch, Processor
from rtit.registers import CTL, STATUS, Msr
from rtit.unit import Memory, Parameters
from rtit.unit.output.topa import Entry, write_table
from rtit.unit.parameters.table import PSB_PLUS_ORDER

USER, HIGH, KERNEL = 0x40_1000, 0x7F00_0000_1000, 0xFFFF_FFFF_8100_0000
LENGTH = 24
CR3S = (0x5000, 0x7000)
BUFFER, SIZE, TABLE = 0x1000_0000, 1 << 22, 0x10_0000
TRANSFERS = {"indirect_jump", "indirect_call", "far", "ret", "syscall", "resume"}

Program = dict[int, tuple[str, int]]


def place(number: int) -> int:
    """The address of ToPA region `number`."""
    return BUFFER + number * 0x10_0000


def make_program(random: Random) -> Program:
    """Instructions of 4 bytes. Direct branches go forward only, so that no loop runs without a
    packet.
    """
    program: Program = {}
    for base in (USER, HIGH, KERNEL):
        kernel = base == KERNEL
        for index in range(LENGTH):
            kinds = ["other", "conditional", "conditional", "jump", "call", "indirect_jump"]
            kinds += ["call", "call", "indirect_call", "ret", "ret", "ret", "ret"]
            kinds += ["far"] + (["resume", "cr3"] if kernel else ["syscall"])
            kind = random.choice(kinds)
            target = base + 4 * random.choice((index + 1, random.randint(index + 1, LENGTH)))
            if kind == "conditional":
                target = base + 4 * random.randrange(LENGTH)
            program[base + 4 * index] = kind, target
        program[base + 4 * LENGTH] = ("resume" if kernel else "indirect_jump"), 0
    return program


@dataclass
class Settings:
    ctl: dict[str, int]
    ranges: list[tuple[int, int, int]]
    parameters: Parameters
    seed: int
    steps: int

    @property
    def gap(self) -> int:
        return max(1, (1 << self.ctl["CycThresh"]) >> 1)


@st.composite
def all_settings(draw: st.DrawFn) -> Settings:
    def flag() -> int:
        return draw(st.integers(0, 1))

    names = ("OS", "TSCEn", "MTCEn", "CYCEn", "CR3Filter")
    ctl = {name: flag() for name in names} | {"BranchEn": 1}
    # Mostly what traces most.
    ctl |= {"User": int(draw(st.integers(0, 3)) < 3), "DisRETC": int(draw(st.integers(0, 3)) == 3)}
    ctl |= {"MTCFreq": draw(st.integers(0, 9)), "CycThresh": draw(st.integers(0, 15))}
    ctl |= {"InjectPsbPmiOnEnable": flag()}
    ranges = []
    for number in range(draw(st.integers(0, 2))):
        base = draw(st.sampled_from((USER, HIGH, KERNEL)))
        first = draw(st.integers(0, LENGTH))
        last = draw(st.integers(first, LENGTH))
        ctl[f"ADDR{number}_CFG"] = draw(st.sampled_from((1, 1, 2)))
        ranges.append((ctl[f"ADDR{number}_CFG"], base + 4 * first, base + 4 * last))
    form = draw(st.sampled_from(("short", "long", "mixed")))
    parameters = Parameters(
        tnt_form=form,  # type: ignore[arg-type]
        tnt_flush=draw(st.integers(0, 6)),
        ip_compression=draw(st.sampled_from(("shortest", "none", "sext48_only", "bdw"))),
        ret_compression_depth=draw(st.sampled_from((64, 5, 1, 0))),
        modeexec_suppress=draw(st.booleans()),
        psb_on_enable_order=draw(st.sampled_from(("before_pge", "after_pge"))),
        psb_delay=draw(st.integers(0, 300)),
        psb_plus_order=tuple(draw(st.permutations(PSB_PLUS_ORDER))),
        cyc_counter_bits=draw(st.integers(12, 19)),
    )
    return Settings(
        ctl,
        ranges,
        parameters,
        draw(st.integers(0, 1 << 32)),
        draw(st.sampled_from((900, 300, 40))),
    )


@dataclass
class Run:
    """Executes a program and keeps the truth: the IPs of instructions that began while the filters
    let them pass.
    """

    chosen: Settings
    sink: Callable[[bytes], None]
    regions: tuple[int, ...] = ()
    program: Program = field(init=False)
    truth: list[int] = field(default_factory=list)
    active: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.chosen.seed)
        self.program = make_program(self.random)
        self.cpu = Processor(
            memory=Memory(observer=lambda _, data: self.sink(data)),
            parameters=self.chosen.parameters,
            arch=Arch.user64(cr3=CR3S[0]),
        )
        self.install()
        self.cpu.wrmsr(Msr.CR3_MATCH, CR3S[0])
        for number, (_, first, last) in enumerate(self.chosen.ranges):
            self.cpu.wrmsr(Msr.ADDR0_A + 2 * number, first)
            self.cpu.wrmsr(Msr.ADDR0_B + 2 * number, last)
        self.clock, self.started = 0, 0
        self.ip, self.cr3, self.kernel, self.back = USER, CR3S[0], False, USER
        self.calls: dict[bool, list[int]] = {False: [], True: []}
        self.triggered = self.context = self.inside = False

    def install(self) -> None:
        """A single range, or a circular table with a region of each of the sizes."""
        if not self.regions:
            self.cpu.wrmsr(Msr.OUTPUT_BASE, BUFFER)
            self.cpu.wrmsr(Msr.OUTPUT_MASK_PTRS, SIZE - 1)
            return
        entries = [Entry(place(number), size) for number, size in enumerate(self.regions)]
        write_table(self.cpu.unit.output.memory, TABLE, [*entries, Entry(TABLE, end=True)])
        self.cpu.wrmsr(Msr.OUTPUT_BASE, TABLE)
        self.chosen.ctl["ToPA"] = 1

    # The model of section 33.2.6, by the letter and without speed.

    def enable(self) -> None:
        self.cpu.wrmsr(Msr.CTL, CTL.encode(TraceEn=1, **self.chosen.ctl), next_ip=self.ip)
        self.triggered, self.started = True, self.clock
        self.context, self.inside = False, not any(c == 1 for c, _, _ in self.chosen.ranges)
        self.entered(self.ip)

    def disable(self) -> None:
        self.cpu.wrmsr(Msr.CTL, 0, ip=self.ip)
        self.cpu.wrmsr(Msr.STATUS, self.cpu.rdmsr(Msr.STATUS) & ~STATUS["Stopped"].mask)
        self.untrigger()

    def untrigger(self) -> None:
        if self.triggered:
            self.triggered = False
            self.active.append(self.clock - self.started)

    def allowed(self) -> bool:
        ctl = self.chosen.ctl
        level = ctl["OS"] if self.kernel else ctl["User"]
        return bool(level) and not (ctl["CR3Filter"] and self.cr3 != CR3S[0])

    def entered(self, target: int) -> None:
        if not self.triggered:
            return
        self.context = self.allowed()
        if self.context:
            hit = {cfg for cfg, first, last in self.chosen.ranges if first <= target <= last}
            filters = any(cfg == 1 for cfg, _, _ in self.chosen.ranges)
            self.inside = 1 in hit or not filters
            if 2 in hit:
                self.untrigger()

    def note(self) -> None:
        if self.triggered and self.context and self.inside:
            self.truth.append(self.ip)

    # Execution

    def step(self) -> None:
        random = self.random
        self.clock += random.choice(
            (0, 1, 1, 3, 40, 1000, 9000) if random.random() < 0.1 else (1, 2)
        )
        self.cpu.at(self.clock)
        turn = random.random()
        if turn < 0.005:
            self.cpu.unit.insert_psb()
        elif turn < 0.01:
            (self.disable if self.cpu.unit.registers.trace_en else self.enable)()
        elif turn < 0.04 and not self.kernel:
            name = random.choice(("interrupt", "exception", "software_interrupt"))
            handler = KERNEL + 4 * random.randrange(LENGTH)
            self.back, self.kernel = self.ip, True
            getattr(self.cpu, name)(self.ip, handler)
            self.arrive(handler)
        else:
            self.note()
            self.execute(*self.program[self.ip])

    def arrive(self, target: int) -> None:
        self.entered(target)
        self.ip = target

    def anywhere(self) -> int:
        base = KERNEL if self.kernel else self.random.choice((USER, HIGH))
        return base + 4 * self.random.randrange(LENGTH + 1)

    def execute(self, kind: str, target: int) -> None:
        cpu, ip, following = self.cpu, self.ip, self.ip + 4
        if kind == "other":
            self.ip = following
        elif kind == "conditional":
            taken = self.random.random() < 0.5
            cpu.conditional(ip, following, target, taken)
            if taken:
                self.arrive(target)
            else:
                self.ip = following
        elif kind == "jump":
            cpu.jump(ip, target)
            self.arrive(target)
        elif kind == "call":
            cpu.call(ip, following, target)
            if target != following:
                self.calls[self.kernel].append(following)
            self.arrive(target)
        elif kind == "cr3":
            self.move_cr3(following)
        elif kind == "syscall":
            handler = KERNEL + 4 * self.random.randrange(LENGTH)
            self.back, self.kernel = following, True
            cpu.syscall(ip, handler)
            self.arrive(handler)
        elif kind == "resume":
            self.kernel = False
            cpu.resume(self.back)
            self.arrive(self.back)
        else:
            self.indirect(kind, following)

    def move_cr3(self, following: int) -> None:
        self.cr3 = self.random.choice(CR3S)
        self.cpu.mov_cr3(self.ip, following, self.cr3)
        if self.allowed() and not self.context:
            self.entered(following)
        elif self.triggered:
            self.context = self.allowed()
        self.ip = following

    def indirect(self, kind: str, following: int) -> None:
        target = self.anywhere()
        if kind == "ret":
            own = self.calls[self.kernel]
            if own and self.random.random() < 0.95:
                target = own.pop()
            self.cpu.ret(self.ip, target)
        elif kind == "indirect_call":
            self.calls[self.kernel].append(following)
            self.cpu.indirect_call(self.ip, following, target)
        else:
            getattr(self.cpu, kind)(self.ip, target)
        self.arrive(target)

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.step()


class Decoder:
    """From packets and program to IPs. `marks` has len(path) at each PSB."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ip: int | None = None
        self.last_ip = 0
        self.path: list[int] = []
        self.marks: list[int] = []
        self.calls: deque[int] = deque(maxlen=64)
        self.in_psb = self.event = False

    def feed(self, stream: list[Packet]) -> None:
        for packet in stream:
            fields: dict[str, Any] = dict(packet.fields)
            ip = self.address(fields) if "ip_bytes" in fields else None
            name = packet.name
            if name == "PSB":
                self.in_psb, self.last_ip = True, 0
                self.calls.clear()
            elif name == "PSBEND":
                self.in_psb = False
                self.marks.append(len(self.path))
            elif name.startswith("TNT"):
                for bit in fields["bits"]:
                    self.result(bit == "T")
            elif name == "FUP":
                assert ip is not None
                if self.ip is None:
                    assert self.in_psb
                    self.ip = ip
                self.reach(ip)
                self.event = not self.in_psb
            elif name == "TIP":
                if not self.event:
                    self.transfer()
                self.ip, self.event = ip, False
            elif name == "TIP.PGE":
                assert self.ip is None
                self.ip = ip
                self.calls.clear()
            elif name == "TIP.PGD":
                self.leave(ip)
            elif name == "PIP" and not self.in_psb and self.ip is not None and not self.event:
                self.walk(lambda at, kind, target: kind == "cr3")
                self.pass_by()
            elif name == "TraceStop":
                assert self.ip is None

    def address(self, fields: dict[str, Any]) -> int | None:
        code, payload = fields["ip_bytes"], fields["payload"]
        if code == 0:
            return None
        if code == 3:
            self.last_ip = payload | (0xFFFF << 48 if payload >> 47 else 0)
        else:
            kept = {1: 16, 2: 32, 4: 48, 6: 64}[code]
            self.last_ip = self.last_ip >> kept << kept | payload
        return self.last_ip

    def walk(self, here: Callable[[int, str, int], bool]) -> None:
        """Execute what needs no packet until `here` is true of the instruction that comes next."""
        assert self.ip is not None
        while not here(self.ip, *self.program[self.ip]):
            kind, target = self.program[self.ip]
            assert kind in ("other", "jump", "call"), f"{kind} at {self.ip:#x} lacks its packet"
            if kind == "call" and target != self.ip + 4:
                self.calls.append(self.ip + 4)
            self.path.append(self.ip)
            self.ip = self.ip + 4 if kind == "other" else target

    def reach(self, ip: int) -> None:
        self.walk(lambda at, kind, target: at == ip)

    def pass_by(self) -> None:
        assert self.ip is not None
        self.path.append(self.ip)
        self.ip += 4

    def result(self, taken: bool) -> None:
        self.walk(lambda at, kind, target: kind in ("conditional", "ret"))
        assert self.ip is not None
        kind, target = self.program[self.ip]
        if kind == "ret":
            assert taken
            target = self.calls.pop()
        self.path.append(self.ip)
        self.ip = target if taken else self.ip + 4

    def transfer(self) -> None:
        self.walk(lambda at, kind, target: kind in TRANSFERS)
        assert self.ip is not None
        kind, _ = self.program[self.ip]
        if kind == "ret" and self.calls:
            self.calls.pop()
        self.path.append(self.ip)
        if kind == "indirect_call":
            self.calls.append(self.ip + 4)

    def leave(self, ip: int | None) -> None:
        if not self.event:
            if ip is None:
                ends = {"conditional", "cr3"} | TRANSFERS
                self.walk(lambda at, kind, target: kind in ends)
            else:
                self.walk(
                    lambda at, kind, target: (
                        kind in TRANSFERS or (kind in ("jump", "call") and target == ip)
                    )
                )
            self.pass_by()
        self.ip, self.event = None, False
        self.calls.clear()


def traced(chosen: Settings, regions: tuple[int, ...] = ()) -> tuple[Run, list[Packet], bytes]:
    out = bytearray()
    run = Run(chosen, out.extend, regions)
    run.enable()
    run.go(chosen.steps)
    if run.cpu.unit.registers.trace_en:
        run.disable()
    return run, list(packets(bytes(out))), bytes(out)


@settings(max_examples=80, deadline=None)
@given(all_settings())
def test_the_path_is_in_the_packets(chosen: Settings) -> None:
    run, stream, _ = traced(chosen)
    decoder = Decoder(run.program)
    decoder.feed(stream)
    assert decoder.path == run.truth


@pytest.mark.spec("PSB-002", "PSB-017", "PSB-018")
@settings(max_examples=40, deadline=None)
@given(all_settings())
def test_every_psb_is_a_beginning(chosen: Settings) -> None:
    run, stream, _ = traced(chosen)
    whole = Decoder(run.program)
    whole.feed(stream)
    places = [index for index, packet in enumerate(stream) if packet.name == "PSB"]
    for place, mark in zip(places, whole.marks, strict=True):
        part = Decoder(run.program)
        part.feed(stream[place:])
        assert part.path == whole.path[mark:]


@pytest.mark.spec("EN-011", "FCPL-002")
@settings(max_examples=40, deadline=None)
@given(all_settings())
def test_no_ip_of_a_filtered_level(chosen: Settings) -> None:
    run, stream, _ = traced(chosen)
    decoder = Decoder(run.program)
    for packet in stream:
        if packet.name == "PSB":
            decoder.last_ip = 0
        if "ip_bytes" in packet.fields:
            ip = decoder.address(dict(packet.fields))
            if ip is not None:
                assert chosen.ctl["OS" if ip >= KERNEL else "User"]


@pytest.mark.spec("CYC-001", "CYC-006", "CYC-007", "CYC-013", "CYC-014")
@settings(max_examples=40, deadline=None)
@given(all_settings())
def test_cyc_tells_all_active_cycles(chosen: Settings) -> None:
    run, stream, _ = traced(chosen)
    cycles = [int(str(p.fields["cycles"])) for p in stream if p.name == "CYC"]
    total = sum(cycles)
    # A second CYC in the same cycle would say 0; the first of a trace may.
    assert cycles.count(0) <= len(run.active)
    if not chosen.ctl["CYCEn"]:
        assert total == 0
    elif chosen.ctl["CycThresh"] == 0:
        assert total == sum(run.active)
    else:
        assert 0 <= sum(run.active) - total < chosen.gap * max(1, len(run.active))


@pytest.mark.spec("MSRSTS-016", "MSRSTS-017", "PSB-015")
@settings(max_examples=40, deadline=None)
@given(all_settings())
def test_packet_byte_count(chosen: Settings) -> None:
    run, stream, out = traced(chosen)
    count = STATUS.decode(run.cpu.rdmsr(Msr.STATUS)).PacketByteCnt
    assert count % 2048 == len(out) % 2048
    # At least one PSB for each period that was passed before the last event, whatever the delay.
    psbs = sum(packet.name == "PSB" for packet in stream)
    assert psbs >= len(out) // (2048 + chosen.parameters.psb_delay + 200)
    # While TraceEn is 0 it stands still, whatever the program does.
    for _ in range(20):
        run.clock += 100
        run.cpu.at(run.clock)
        run.execute(*run.program[run.ip])
    assert STATUS.decode(run.cpu.rdmsr(Msr.STATUS)).PacketByteCnt == count


@pytest.mark.spec("TRCEN-003")
@settings(max_examples=20, deadline=None)
@given(all_settings())
def test_memory_holds_the_stream(chosen: Settings) -> None:
    run, _, out = traced(chosen)
    assert run.cpu.unit.output.memory.read(BUFFER, len(out)) == out
    assert run.cpu.rdmsr(Msr.OUTPUT_MASK_PTRS) >> 32 == len(out)


@pytest.mark.spec("TOPA-002", "TOPA-004", "TOPA-006", "TOPA-007")
@settings(max_examples=20, deadline=None)
@given(all_settings(), st.lists(st.sampled_from((4096, 8192)), min_size=1, max_size=3))
def test_regions_hold_the_stream(chosen: Settings, sizes: list[int]) -> None:
    chosen.ctl |= {"CYCEn": 1, "CycThresh": 0, "User": 1}
    chosen.steps *= 3
    run, _, out = traced(chosen, tuple(sizes))
    image = [bytearray(size) for size in sizes]
    number = offset = 0
    for byte in out:
        image[number][offset] = byte
        offset += 1
        if offset == sizes[number]:
            number, offset = (number + 1) % len(sizes), 0
    memory = run.cpu.unit.output.memory
    assert [memory.read(place(n), size) for n, size in enumerate(sizes)] == image
    assert run.cpu.rdmsr(Msr.OUTPUT_MASK_PTRS) == offset << 32 | number << 7 | 0x7F


@pytest.mark.spec("FUP-003")
@settings(max_examples=40, deadline=None)
@given(all_settings())
def test_a_fup_is_never_alone(chosen: Settings) -> None:
    _, stream, _ = traced(chosen)
    in_psb = pending = False
    for packet in stream:
        if packet.name in ("PSB", "PSBEND"):
            in_psb = packet.name == "PSB"
            assert not pending
        elif packet.name == "FUP" and not in_psb:
            pending = True
        elif packet.name in ("TIP", "TIP.PGD"):
            pending = False
        elif packet.name not in ("CYC", "MTC", "PIP", "MODE.Exec"):
            assert not pending
    assert not pending


@settings(max_examples=40, deadline=None)
@given(all_settings(), st.integers(0, 500))
def test_a_restored_unit_goes_on_alike(chosen: Settings, steps: int) -> None:
    out = bytearray()
    run = Run(chosen, out.extend)
    run.enable()
    run.go(steps)
    unit = run.cpu.unit
    before = unit.snapshot()
    assert unit.snapshot() == before
    kept = vars(run) | {"calls": {level: own[:] for level, own in run.calls.items()}}
    kept |= {"truth": run.truth[:], "active": run.active[:]}
    dice = run.random.getstate()
    del out[:]
    run.go(200)
    first, after = bytes(out), unit.snapshot()
    assert before.state.diff(before.state.copy()) == {}

    vars(run).update(kept)
    run.random.setstate(dice)
    other = Processor(
        memory=Memory(observer=lambda _, data: out.extend(data)), parameters=chosen.parameters
    )
    other.unit.restore(before)
    run.cpu = other
    del out[:]
    run.go(200)
    assert bytes(out) == first
    assert other.unit.snapshot() == after


@settings(max_examples=40, deadline=None)
@given(all_settings())
def test_ranges_that_hold_everything_change_nothing(chosen: Settings) -> None:
    """The fast path of near branches against the whole rule, which ranges in use demand."""
    for number in range(4):
        chosen.ctl.pop(f"ADDR{number}_CFG", None)
    chosen.ranges = []
    _, _, plain = traced(chosen)
    chosen.ctl |= {"ADDR0_CFG": 1, "ADDR1_CFG": 1}
    chosen.ranges = [(1, 0, (1 << 47) - 1), (1, 0x1FFFF << 47, (1 << 64) - 1)]
    _, _, filtered = traced(chosen)
    assert filtered == plain
