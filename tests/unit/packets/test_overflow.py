"""Overflows, deferred TIPs and packet blocks in random programs on a random processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.packets import Packet, iterate_packets
from rtit.packets.table import FORBIDDEN_IN_BLOCK
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, Msr
from rtit.unit import overflow
from rtit.unit.memory import Memory
from rtit.unit.overflow import emit_overflow_packets, start_overflow
from rtit.unit.parameters.table import Parameters
from support.properties import examples
from unit.execution.program import Settings, all_settings
from unit.execution.run import Run, trace_program
from unit.pairs.reader import FilterReader
from unit.world.reader import split


class Overflowing(Run):
    """Overflows begin and end between any two instructions; `pieces` are the parts between them, as
    first and last index of the truth.
    """

    often = 0.05

    def run(self, steps: int) -> None:
        self.pieces = [[0, 0]]
        begin, resolve = start_overflow, emit_overflow_packets

        def begins(core: Any, **named: Any) -> None:
            self.pieces[-1][1] = len(self.truth)
            begin(core, **named)

        def resolves(core: Any, **named: Any) -> bool:
            self.pieces.append([len(self.truth), 0])
            return resolve(core, **named)

        with patch.multiple(overflow, start_overflow=begins, emit_overflow_packets=resolves):
            self.enable()
            self.go(steps)
            if self.cpu.unit.registers.trace_en:
                self.disable()
        self.pieces[-1][1] = len(self.truth)

    def step(self) -> None:
        super().step()
        if self.often and self.random.random() < self.often:
            if self.cpu.unit.state.overflow is None:
                self.cpu.unit.begin_overflow()
            else:
                self.cpu.unit.end_overflow(self.ip)


def paths(run: Run, parts: list[list[Packet]]) -> list[list[int]]:
    """Return the IPs of each part between overflows."""
    found = []
    for number, part in enumerate(parts):
        reader = FilterReader(run.program, after_overflow=number > 0)
        reader.feed(part)
        found.append(reader.path)
    return found


def check(run: Overflowing, out: bytes) -> None:
    parts = split(out)
    assert len(parts) == len(run.pieces)
    for path, (first, last) in zip(paths(run, parts), run.pieces, strict=True):
        assert path == run.truth[first : first + len(path)]
        assert len(path) <= last - first
    # Parts that ended without an overflow are complete.
    assert run.cpu.unit.state.overflow is None
    first, last = run.pieces[-1]
    assert len(paths(run, parts)[-1]) == last - first


@pytest.mark.spec("OVF-001", "OVF-002", "OVF-003", "OVF-006", "RET-006")
@given(all_settings())
def test_parts_between_overflows_decode(chosen: Settings) -> None:
    out = bytearray()
    run = Overflowing(chosen, out.extend)
    run.run(chosen.steps)
    check(run, bytes(out))


@pytest.mark.spec("OVF-001", "OVF-002", "OVF-004")
@given(all_settings(), st.integers(256, 700), st.integers(1, 60), st.data())
def test_slowly_draining_buffer_overflows(
    chosen: Settings, size: int, cycles: int, data: st.DataObject
) -> None:
    level = data.draw(st.integers(0, size // 2))
    chosen.parameters = replace(
        chosen.parameters, buffer_bytes=size, drain_cycles=cycles, ovf_resolve_level=level
    )
    out = bytearray()
    run = Overflowing(chosen, out.extend)
    run.often = 0
    run.run(chosen.steps)
    check(run, bytes(out))


@pytest.mark.spec("OVF-005", "OVF-009")
@examples(30)
@given(all_settings())
def test_overflow_has_no_packet_but_its_cyc(chosen: Settings) -> None:
    out = bytearray()
    run = Overflowing(chosen, out.extend)
    run.often = 0
    run.enable()
    run.go(50)
    unit = run.cpu.unit
    if not unit.state.trigger_en:
        return
    unit.begin_overflow()
    del out[:]
    for _ in range(100):
        if not unit.registers.trace_en or not unit.state.trigger_en:
            return
        assert not out
        run.step()
    if unit.state.overflow is not None and unit.state.trigger_en:
        unit.end_overflow(run.ip)
        names = [packet.name for packet in iterate_packets(bytes(out))]
        assert names[0] in ("CYC", "OVF")
        assert names.count("OVF") == 1
        assert names.count("CYC") <= 1
        if unit.state.packet_en:
            assert names[names.index("OVF") + 1] == "FUP"


def barriers(stream: list[Packet]) -> list[tuple[str, list[int], list[bytes]]]:
    """Return the results and TIPs between packets that are never deferred, with the packet that
    ended them.
    """
    found: list[tuple[str, list[int], list[bytes]]] = []
    bits, tips = "", []
    for packet in stream:
        if packet.name.startswith("TNT"):
            bits += str(packet.fields["bits"])
        elif packet.name == "TIP":
            tips.append(packet.raw)
        else:
            found.append((bits, tips, packet.raw))  # type: ignore[arg-type]
            bits, tips = "", []
    return [*found, (bits, tips, b"")]  # type: ignore[list-item]


@pytest.mark.spec("DTIP-001", "DTIP-003", "GOLD-009")
@given(all_settings(), st.integers(1, 64))
def test_deferral_does_not_change_tips_and_results(chosen: Settings, limit: int) -> None:
    chosen.ctl |= {"CYCEn": 0, "PSBFreq": 5}
    _, plain, _ = trace_program(chosen)
    chosen.parameters = replace(chosen.parameters, deferred_tips=limit)
    _, deferred, _ = trace_program(chosen)
    assert barriers(deferred) == barriers(plain)


class Anything:
    """Runs random events of all kinds in kernel code."""

    def __init__(self, seed: int, parameters: Parameters) -> None:
        self.out = bytearray()
        self.random = Random(seed)
        self.cpu = Processor(
            checked=False,
            memory=Memory(observer=lambda _, data: self.out.extend(data)),
            parameters=parameters,
            arch=ArchState(cpl=0),
        )
        self.cpu.set_msr(Msr.OUTPUT_BASE, 0x1000_0000)
        self.cpu.set_msr(Msr.OUTPUT_MASK_PTRS, (1 << 22) - 1)
        fields: tuple[str, ...] = (
            "OS",
            "User",
            "BranchEn",
            "PTWEn",
            "FUPonPTW",
            "PwrEvtEn",
            "EventEn",
            "TSCEn",
        )
        fields += ("MTCEn", "CYCEn")
        bits = {name: int(self.random.random() < 0.8) for name in fields}
        self.cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, MTCFreq=3, **bits), next_ip=0x1000)
        self.clock = 0

    def step(self) -> None:
        random, cpu = self.random, self.cpu
        ip, target = random.randrange(0x1000, 0x9000), random.randrange(0x1000, 0x9000)
        self.clock += random.choice((0, 1, 5, 400))
        cpu.at(self.clock)
        in_tx = cpu.arch.in_tx
        events: tuple[Callable[[], None], ...] = (
            lambda: cpu.conditional(ip, ip + 2, target, random.random() < 0.5),
            lambda: cpu.indirect_jump(ip, target),
            lambda: cpu.exception(ip, target, vector=13, interrupt_flag=False),
            lambda: cpu.mov_cr3(ip, ip + 3, random.randrange(4) << 12),
            lambda: cpu.ptwrite(ip, ip + 5, random.randrange(1 << 64)),
            lambda: cpu.change_mode(ip, ip + 1, interrupt_flag=random.random() < 0.5),
            lambda: cpu.mwait(ip, ip + 3, 0x20),
            lambda: cpu.end_transaction(ip, ip + 3) if in_tx else cpu.begin_transaction(ip, target),
            cpu.unit.insert_psb,
            lambda: self.record(ip),
            lambda: self.record(ip),
        )
        if in_tx:
            # Events that abort a transaction do not occur in it.
            events = (events[0], events[1], events[4], events[5], events[7], *events[8:])
        if cpu.unit.state.asleep:
            events = (lambda: cpu.wake(last=2, deepest=2), cpu.unit.insert_psb)
        random.choice(events)()

    def record(self, ip: int) -> None:
        random = self.random
        kinds = random.sample((4, 5, 1, 16, 8, 9, 10), random.randrange(1, 8))
        wide = {4: 3, 5: 4, 1: 18}
        groups = {
            kind: [
                (number, random.randrange(1 << 64))
                for number in range(random.randrange(wide.get(kind, 32) + 1))
            ]
            for kind in kinds
        }
        clocks = {}
        for kind in self.cpu.unit.parameters.pebs_block_order:
            if kind in kinds and random.random() < 0.3:
                self.clock += random.choice((1, 100, 400))
                clocks[kind] = self.clock
        self.cpu.pebs(ip, groups, four_bytes=random.random() < 0.3, clocks=clocks)


@pytest.mark.spec("TAB15-001", "TAB15-002", "TAB15-003", "TAB15-004", "TAB15-005", "TAB15-006")
@pytest.mark.spec("TAB15-007", "TAB15-008", "TAB15-009", "OVF-014", "BBP-004")
@given(st.integers(0, 1 << 32), st.sampled_from((0, 0, 300, 1000)), st.integers(0, 4))
def test_overflow_ends_an_open_block(seed: int, size: int, deferred: int) -> None:
    machine = Anything(seed, Parameters(buffer_bytes=size, drain_cycles=3, deferred_tips=deferred))
    for _ in range(150):
        machine.step()
    open_block = False
    for packet in iterate_packets(bytes(machine.out)):
        if open_block:
            assert packet.name not in FORBIDDEN_IN_BLOCK
        if packet.name == "BBP":
            open_block = True
        elif packet.name in ("BEP", "OVF"):
            open_block = False
        elif packet.name == "BIP":
            assert open_block


@examples(40)
@given(st.integers(0, 1 << 32), st.sampled_from((0, 300, 1000)), st.integers(0, 150))
def test_snapshot_has_overflow_and_sleep(seed: int, size: int, steps: int) -> None:
    parameters = Parameters(buffer_bytes=size, drain_cycles=3, deferred_tips=2)
    machine = Anything(seed, parameters)
    for _ in range(steps):
        machine.step()
    before, dice, clock = machine.cpu.unit.snapshot(), machine.random.getstate(), machine.clock
    del machine.out[:]
    for _ in range(100):
        machine.step()
    first, after = bytes(machine.out), machine.cpu.unit.snapshot()
    del machine.out[:]
    machine.cpu = Processor(
        checked=False,
        memory=Memory(observer=lambda _, data: machine.out.extend(data)),
        parameters=parameters,
    )
    machine.cpu.unit.restore(before)
    machine.random.setstate(dice)
    machine.clock = clock
    for _ in range(100):
        machine.step()
    assert bytes(machine.out) == first
    assert machine.cpu.unit.snapshot() == after
