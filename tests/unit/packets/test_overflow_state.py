"""State lost in an overflow is reported at its end: the state in packets is the true state."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.packets import Packet, iterate_packets
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, Msr
from rtit.unit.arch_state import VmxControls
from rtit.unit.memory import Memory
from rtit.unit.parameters.table import Parameters
from support.properties import examples

KERNEL, USER, GUEST, STOP = 0x10_0000, 0x20_0000, 0x30_0000, 0x50_0000
WIDTHS = {(0, 0): 16, (0, 1): 32, (1, 0): 64}


class StateFromPackets:
    """Processor state by the packets alone (section 33.4.2)."""

    def __init__(self, arch: ArchState, *, event_en: bool) -> None:
        self.bits: int | None = None
        self.flag = arch.interrupt_flag
        self.event_en = event_en
        self.cr3, self.non_root = arch.cr3, False
        self.in_tx = False
        self.vmcs = arch.vmcs
        self.stopped = False

    def take(self, packet: Packet) -> None:
        fields: dict[str, Any] = dict(packet.fields)
        match packet.name:
            case "MODE.Exec":
                self.bits = WIDTHS[fields["csl"], fields["csd"]]
                if self.event_en:
                    self.flag = bool(fields["iflag"])
            case "MODE.TSX":
                self.in_tx = bool(fields["in_tx"])
            case "PIP":
                self.cr3, self.non_root = fields["cr3"], bool(fields["nr"])
            case "VMCS":
                self.vmcs = fields["pointer"]
            case "TraceStop":
                self.stopped = True
            case "PSB":
                # A decoder may begin here.
                self.bits = None


class Bounded:
    """Runs random events of a kernel, its user and its guest; the buffer is small and drains
    slowly.
    """

    def __init__(self, seed: int, size: int, cycles: int) -> None:
        self.random = random = Random(seed)
        self.out = bytearray()
        self.ctl = {
            "OS": 1,
            "User": random.choice((0, 1, 1)),
            "BranchEn": random.choice((0, 1, 1, 1)),
            "EventEn": random.choice((0, 1)),
            "PTWEn": 1,
            "TSCEn": random.choice((0, 1)),
            "CYCEn": random.choice((0, 1)),
            "ADDR0_CFG": 2,
        }
        self.cpu = Processor(
            checked=False,
            memory=Memory(observer=lambda _, data: self.out.extend(data)),
            parameters=Parameters(
                buffer_bytes=size,
                drain_cycles=cycles,
                ovf_resolve_level=random.randrange(size // 2),
                deferred_tips=random.choice((0, 4)),
            ),
            arch=ArchState(cpl=0, cr3=0x5000, vmx="root", vmcs=0x9000),
        )
        self.cpu.wrmsr(Msr.OUTPUT_BASE, 0x1000_0000)
        self.cpu.wrmsr(Msr.OUTPUT_MASK_PTRS, (1 << 22) - 1)
        self.cpu.wrmsr(Msr.ADDR0_A, STOP)
        self.cpu.wrmsr(Msr.ADDR0_B, STOP + 0xFFFF)
        self.believed = StateFromPackets(self.cpu.arch, event_en=bool(self.ctl["EventEn"]))
        self.cpu.wrmsr(Msr.CTL, CTL.encode(TraceEn=1, **self.ctl), next_ip=KERNEL)
        self.clock = self.seen = 0
        self.home = KERNEL

    def step(self) -> None:
        random, cpu = self.random, self.cpu
        self.clock += random.choice((0, 0, 0, 1, 5, 300))
        cpu.at(self.clock)
        random.choice(self.events())()
        packets = list(iterate_packets(bytes(self.out[self.seen :])))
        self.seen = len(self.out)
        for packet in packets:
            self.believed.take(packet)

    def events(self) -> list[Callable[[], None]]:
        random, cpu, arch = self.random, self.cpu, self.cpu.arch
        ip, target = self.home + random.randrange(0x8000), self.home + random.randrange(0x8000)
        if random.random() < 0.002:
            target = STOP + random.randrange(0x1000)
        flag = random.random() < 0.5
        cr3 = random.choice((arch.cr3, 0x1000 * random.randrange(1, 9)))
        near: list[Callable[[], None]] = [
            lambda: cpu.indirect_jump(ip, target),
            lambda: cpu.conditional(ip, ip + 2, target, random.random() < 0.5),
            lambda: cpu.ptwrite(ip, ip + 5, random.randrange(1 << 64)),
        ]
        if arch.in_tx:
            ends = (cpu.end_transaction, cpu.abort_transaction)
            return [*near, lambda: random.choice(ends)(ip, ip + 3)]
        events = [
            *near * 2,
            lambda: cpu.begin_transaction(ip, ip + 4),
            lambda: cpu.pebs(ip, {1: [(n, 1) for n in range(random.randrange(18))]}),
        ]
        if arch.cpl == 3:
            events += [
                lambda: self.to_kernel(cpu.syscall, ip, target, cr3=cr3, interrupt_flag=False),
                lambda: self.to_kernel(cpu.interrupt, ip, target, interrupt_flag=False),
            ]
        else:
            events += [
                lambda: cpu.mov_cr3(ip, ip + 3, cr3),
                lambda: cpu.change_mode(ip, ip + 1, interrupt_flag=flag),
                lambda: self.to_user(flag),
                lambda: self.to_user(flag),
                lambda: cpu.exception(ip, target, vector=13, cr3=cr3, interrupt_flag=False),
            ]
            if arch.vmx == "root":
                events += [
                    lambda: cpu.vmptrld(ip, ip + 4, 0x1000 * random.randrange(1, 4)),
                    lambda: self.enter(ip, cr3, flag),
                ]
        if arch.vmx == "nonroot":
            events += [lambda: self.exit(ip)]
        return events

    def to_kernel(self, event: Callable[..., None], ip: int, target: int, **changes: Any) -> None:
        if target < STOP:
            target += (GUEST if self.cpu.arch.vmx == "nonroot" else KERNEL) - self.home
        self.home = GUEST if self.cpu.arch.vmx == "nonroot" else KERNEL
        event(ip, target, **changes)

    def to_user(self, flag: bool) -> None:
        bits = self.random.choice((32, 64, 16))
        self.home = USER
        self.cpu.resume(USER + 0x100, bits=bits, interrupt_flag=flag)

    def enter(self, ip: int, cr3: int, flag: bool) -> None:
        self.home = GUEST
        self.cpu.vm_entry(ip, GUEST, controls=VmxControls(), cr3=cr3, interrupt_flag=flag)

    def exit(self, ip: int) -> None:
        self.home = KERNEL
        self.cpu.vm_exit(ip, KERNEL + 0x40, reason=10)

    def check(self) -> None:
        """Assert that the state in packets is true, as far as the enables allow it."""
        state, arch, believed = self.cpu.unit.state, self.cpu.arch, self.believed
        if state.overflow is not None:
            return
        assert believed.stopped == state.stopped
        if not (state.trigger_en and state.context_en):
            return
        assert (believed.cr3, believed.non_root) == (arch.cr3, arch.vmx == "nonroot")
        assert believed.vmcs == arch.vmcs
        if self.ctl["BranchEn"]:
            assert believed.in_tx == arch.in_tx
            if state.packet_en:
                assert believed.bits == arch.bits
        if self.ctl["EventEn"] and state.filter_en:
            assert believed.flag == arch.interrupt_flag


@pytest.mark.spec("OVF-015", "OVF-016")
@examples(300)
@given(st.integers(0, 1 << 32), st.integers(256, 400), st.integers(1, 30))
def test_state_reported_after_an_overflow_is_current(seed: int, size: int, cycles: int) -> None:
    run = Bounded(seed, size, cycles)
    for _ in range(150):
        run.step()
        run.check()
