"""The processor of `world`, with ranges, tables that end, and overlapping situations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rtit.linter import lint
from rtit.packets import Packet, iterate_packets
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, FULL, Msr, Profile, RegisterFile
from rtit.registers.access_rules import wrmsr_faults
from rtit.unit.compression import NO_LAST_IP
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table
from rtit.unit.state import DEBUGCTL_LBR, IA32_DEBUGCTL
from unit.pairs.reader import FilterReader
from unit.pairs.reference import MATCH, Range, Watched
from unit.world.program import (
    BUFFER,
    ENCLAVE,
    GUEST,
    GUEST_USER,
    KERNEL,
    LENGTH,
    OWN,
    SIZE,
    STEP,
    TABLE,
    USER,
    WITH_FUP,
    Plan,
    area,
)
from unit.world.reader import Reader
from unit.world.world import World

FILTERS: list[Range] = [(KERNEL, KERNEL + STEP * 11), (USER, GUEST_USER + STEP * LENGTH)]
STOPS: list[Range] = [(KERNEL + STEP * 15, KERNEL + STEP * 15)]
REGION = 4096
PSB_PERIOD = 2048


@dataclass
class Shape:
    """Configuration for a pair of situations: ranges, a CR3 filter, an STM, and the ends of
    regions.
    """

    filters: bool = False
    stops: bool = False
    cr3: bool = False
    stm: bool = False
    regions: list[str] = field(default_factory=list)


def supports(profile: Profile, name: str, value: int) -> bool:
    """Return whether the processor supports this value of a field of IA32_RTIT_CTL."""
    ctl = CTL.encode(**{name: value})
    return not wrmsr_faults(Msr.CTL, ctl, current=RegisterFile(), profile=profile)


class Machine(World):
    """Executes a pair. `check` asserts the invariants after each event, `finish` those of the whole
    run.
    """

    def __init__(self, plan: Plan, shape: Shape, profile: Profile = FULL) -> None:
        self.shape, self.profile = shape, profile
        plan.ctl |= {
            name: 0 for name, value in plan.ctl.items() if not supports(profile, name, value)
        }
        super().__init__(plan)
        # One of each, so that a situation finds the instruction that it needs.
        for base, kinds in OWN.items():
            for number, kind in enumerate(dict.fromkeys((*kinds, "indirect_jump"))):
                address = base + STEP * (2 * number + 1)
                self.program[address] = kind, self.program[address][1]
        self.away: str | None = None
        self.seen = 0
        self.packet_reader = FilterReader(self.program)
        self.reported: dict[str, Any] = {}
        self.first_active = 0

    @property
    def now(self) -> Watched:
        return self.cpu  # type: ignore[return-value]

    def processor(self) -> Processor:
        cpu = Processor(
            checked=False,
            profile=self.profile,
            memory=Memory(observer=lambda _, data: self.out.extend(data)),
            parameters=self.plan.parameters,
            arch=ArchState(
                cpl=0,
                cr3=MATCH,
                vmx="root",
                vmcs=0x9000,
                stm=0x7000 if self.shape.stm else None,
            ),
        )
        cpu.set_msr(IA32_DEBUGCTL, DEBUGCTL_LBR)
        ctl = self.plan.ctl
        stops = STOPS if self.shape.stops else []
        filters = FILTERS[: self.profile.ranges - len(stops)] if self.shape.filters else []
        for number, (cfg, (first, last)) in enumerate(
            [(1, each) for each in filters] + [(2, each) for each in stops]
        ):
            ctl[f"ADDR{number}_CFG"] = cfg
            cpu.set_msr(Msr.ADDR0_A + 2 * number, first)
            cpu.set_msr(Msr.ADDR0_B + 2 * number, last)
        ctl["CR3Filter"] = int(self.shape.cr3)
        cpu.set_msr(Msr.CR3_MATCH, MATCH)
        ends = {"topa_stop", "topa_error"} & set(self.shape.regions)
        return Watched(cpu, ctl, filters, stops, ends=bool(ends))  # type: ignore[return-value]

    def install(self) -> None:
        if not self.shape.regions:
            super().install()
            return
        entries: list[TopaEntry] = []
        for number, how in enumerate(self.shape.regions):
            base = BUFFER + number * SIZE
            entries.append(
                TopaEntry(base, REGION, interrupt=how == "topa_pmi", stop=how == "topa_stop")
            )
            if how == "topa_error":
                # Not aligned to its size.
                entries.append(TopaEntry(BUFFER + REGION, 2 * REGION))
        room = TopaEntry(BUFFER + 8 * SIZE, SIZE)
        write_topa_table(
            self.cpu.unit.output.memory, TABLE, [*entries, room, TopaEntry(TABLE, end=True)]
        )
        self.cpu.set_msr(Msr.OUTPUT_BASE, TABLE)
        self.cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0)

    # Tracing: the reference computes the enables

    def enable(self) -> None:
        ctl = {"ToPA": 1} if self.shape.regions else {}
        self.cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, **self.plan.ctl, **ctl), next_ip=self.ip)
        self.traced = True

    def ended(self) -> None:
        self.traced = False

    def allowed(self, base: int) -> bool:
        return self.now.visible

    def again(self) -> None:
        """Enable tracing again after TraceStop, a full buffer or an error."""
        self.cpu.set_msr(Msr.CTL, 0, ip=self.ip)
        self.finish()
        self.cpu.set_msr(Msr.STATUS, 0)
        self.install()
        del self.out[:]
        self.truth.clear()
        self.pieces[:] = [[0, 0]]
        self.packet_reader = FilterReader(self.program)
        self.seen, self.first_active = 0, len(self.now.active)
        self.reported.clear()
        self.enable()
        self.check()

    # Position

    def bring(self, base: int, kind: str | None = None, slot: int | None = None) -> None:
        """Move to KERNEL, USER, GUEST or GUEST_USER, at an instruction of a kind or at a slot."""
        self.pass_entries()
        target = self.find_instruction(base, kind, slot)
        if self.cpu.arch.in_tx:
            self.do(
                self.cpu.abort_transaction,
                self.ip,
                self.find_instruction(area(self.ip), "far", None),
            )
        if area(self.ip) in (GUEST, GUEST_USER) and base in (KERNEL, USER):
            there = target if base == KERNEL else self.find_instruction(KERNEL, "resume", None)
            self.do(self.cpu.vm_exit, self.ip, there, reason=1)
        elif area(self.ip) == ENCLAVE:
            there = target if base == KERNEL else self.find_instruction(KERNEL, "resume", None)
            self.do(
                self.cpu.aex, self.ip, self.find_instruction(USER, "far", None), there, vector=3
            )
        if base in (GUEST, GUEST_USER) and area(self.ip) not in (GUEST, GUEST_USER):
            self.bring(KERNEL, "vm_entry")
            there = target if base == GUEST else self.find_instruction(GUEST, "resume", None)
            self.note()
            self.do(self.cpu.vm_entry, self.ip, there, controls=self.controls, cr3=0x7000)
        if self.ip == target:
            return
        if base in (KERNEL, GUEST):
            self.do(self.cpu.interrupt, self.ip, target, vector=0x20)
            return
        kernel = KERNEL if base == USER else GUEST
        there = self.find_instruction(kernel, "resume", None)
        if self.ip != there:
            self.do(self.cpu.interrupt, self.ip, there, vector=0x21)
        self.note()
        self.do(self.cpu.resume, target)

    def pass_entries(self) -> None:
        """Move past instructions before which an event would have the same packets as the
        instruction.
        """
        while self.program[self.ip][0] in WITH_FUP:
            self.step()
            self.check()

    def find_instruction(self, base: int, kind: str | None, slot: int | None) -> int:
        if kind is not None:
            return base + STEP * (
                2 * list(dict.fromkeys((*OWN[base], "indirect_jump"))).index(kind) + 1
            )
        return base + STEP * (self.random.randrange(LENGTH) if slot is None else slot)

    def note(self) -> None:
        """Record that the instruction at `ip` begins."""
        if self.now.visible:
            self.truth.append(self.ip)

    def do(self, event: Any, *plain: Any, **named: Any) -> None:
        """Run an event that changes the position of the processor."""
        event(*plain, **named)
        self.ip = self.cpu.ip
        self.check()

    def end_overflow(self) -> None:
        """End the overflow, unless a full buffer decides its end."""
        if not self.plan.parameters.buffer_bytes:
            self.cpu.unit.end_overflow(None if self.away == "smm" else self.ip)
            self.check()

    def pass_time(self) -> None:
        self.clock += self.random.choice((0, 1, 1, 3, 40, 900))
        self.cpu.at(self.clock)
        self.check()

    def walk(self, steps: int) -> None:
        for _ in range(steps):
            if self.away is not None:
                self.pass_time()
                if self.away == "smm":
                    self.cpu.indirect_jump(0x8000, 0x8100)
                continue
            self.step()
            self.check()
            if (self.now.stopped or self.now.cut) and self.random.random() < 0.1:
                self.again()

    def straight(self, kind: str, ip: int, following: int) -> None:
        # Without PTWRITE support another instruction is used.
        there = kind != "ptwrite" or self.profile.ptwrite
        super().straight(kind if there else "other", ip, following)

    def smi(self) -> None:
        if not self.shape.stm:
            super().smi()
            return
        back = self.outside()
        self.do(self.cpu.smm_vm_exit, self.ip, self.find_instruction(KERNEL, "vm_entry", None))
        self.note()
        self.do(self.cpu.smm_vm_entry, self.ip, back)

    def switch(self) -> None:
        if not (self.now.stopped or self.now.cut):
            super().switch()

    # Invariants

    def check(self) -> None:
        """Assert the invariants after an event, while the output accepts all bytes."""
        self.now.look()
        self.branch_records()
        if self.away == "another thread":
            return
        state = self.cpu.unit.state
        assert (len(self.out) - state.packet_byte_count) % PSB_PERIOD == 0
        if self.now.cut:
            return
        assert not state.error
        assert state.trigger_en == self.now.triggered
        assert state.stopped == self.now.stopped
        if self.now.triggered:
            assert state.context_en == self.now.context
            if self.now.context:
                assert state.filter_en == self.now.inside
        new = bytes(self.out[self.seen :])
        self.seen = len(self.out)
        if self.plan.parameters.held_bytes:
            return
        for packet in iterate_packets(new):
            self.take(packet)
        if state.overflow is None:
            self.compare()

    def branch_records(self) -> None:
        """Assert that LBR records a branch, unless PT is on and the two exclude each other."""
        unit = self.cpu.unit
        before = unit.state.last_branches
        self.cpu.last_branch(self.ip, self.ip)
        rests = self.profile.lbr_exclusive and unit.registers.trace_en
        assert (unit.state.last_branches == before) == rests

    def take(self, packet: Packet) -> None:
        fields: dict[str, Any] = dict(packet.fields)
        if packet.name == "PSB":
            self.packet_reader.last_ip = 0
        if "ip_bytes" in fields:
            self.packet_reader.address(fields)
        if packet.name == "MODE.Exec":
            self.reported["mode"] = fields["csl"], fields["csd"], fields["iflag"]
        elif packet.name == "MODE.TSX":
            self.reported["in_tx"] = bool(fields["in_tx"])
        elif packet.name == "PIP":
            self.reported["cr3"] = fields["cr3"], fields["nr"]
        elif packet.name in ("TIP.PGE", "TIP.PGD"):
            self.reported["on"] = packet.name == "TIP.PGE"
        elif packet.name == "OVF":
            self.reported.clear()

    def compare(self) -> None:
        """Assert that the state in packets is the true state."""
        state, ctl, arch = self.cpu.unit.state, self.plan.ctl, self.cpu.arch
        if state.last_ip != NO_LAST_IP and not state.deferred_tips:
            assert state.last_ip == self.packet_reader.last_ip
        reported = self.reported
        # Packets do not report an authenticated code module.
        if "on" in reported and self.away != "acm":
            assert reported["on"] == state.packet_en
        if not self.now.triggered:
            reported.pop("cr3", None)
            reported.pop("in_tx", None)
            return
        if state.packet_en and "mode" in reported:
            assert reported["mode"] == (1, 0, int(bool(ctl["EventEn"]) and arch.interrupt_flag))
        if state.packet_en and "in_tx" in reported:
            assert reported["in_tx"] == arch.in_tx
        concealed = any(self.plan.conceal.values())
        if state.context_en and ctl["OS"] and "cr3" in reported and not concealed:
            assert reported["cr3"][0] == arch.cr3

    def finish(self) -> None:
        """Assert the path and the cycles of a finished run."""
        self.pieces[-1][1] = len(self.truth)
        if not self.now.cut and not self.plan.parameters.held_bytes:
            assert list(lint(bytes(self.out))) == []
        parts = self.parts()
        # Without output the end of an overflow may be lost, too.
        pieces = [self.truth[first:last] for first, last in self.pieces]
        path: list[int] = []
        truth: list[int] = []
        for number, (part, truth) in enumerate(zip(parts, pieces, strict=not self.now.cut)):
            reader = FilterReader(self.program, after_overflow=number > 0)
            reader.feed(part)
            self.contexts(reader)
            path = reader.path
            assert path == truth[: len(path)]
        if not self.now.cut:
            assert path == truth
        if self.plan.ctl["CYCEn"] and self.plan.ctl["CycThresh"] == 0 and len(parts) == 1:
            cycles = [int(str(p.fields["cycles"])) for p in parts[0] if p.name == "CYC"]
            active = sum(self.now.active[self.first_active :])
            assert sum(cycles) <= active if self.now.cut else sum(cycles) == active

    def parts(self) -> list[list[Packet]]:
        found: list[list[Packet]] = [[]]
        for packet in self.whole():
            if packet.name == "OVF":
                found.append([])
            else:
                found[-1].append(packet)
        return found

    def whole(self) -> list[Packet]:
        """Return the packets; if the output was cut, those before the cut."""
        out = bytes(self.out)
        if self.now.cut:
            out = out[: self.seen]
        return list(iterate_packets(out))

    def contexts(self, reader: Reader) -> None:
        for ip in reader.packet_ips:
            base = area(ip)
            assert self.plan.ctl["OS" if base in (KERNEL, GUEST) else "User"]
