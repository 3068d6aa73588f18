"""Permitted behaviours of the output, as parameters: internal buffers, changes of the table while
tracing, PSB spacing (sections 33.2.7 and 33.4.2.17).
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from rtit.packets import iterate_packets
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, STATUS, Msr
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table
from rtit.unit.parameters.table import Parameters

TABLE = 0x10_0000
A, B, C, D = 0x20_0000, 0x30_0000, 0x40_0000, 0x50_0000


def start(*entries: TopaEntry | int, arch: ArchState | None = None, **parameters: Any) -> Processor:
    cpu = Processor(checked=False, parameters=Parameters(**parameters), arch=arch)
    write_topa_table(cpu.unit.output.memory, TABLE, entries)
    cpu.set_msr(Msr.OUTPUT_BASE, TABLE)
    ctl = {"TraceEn": 1, "User": 1, "BranchEn": 1, "ToPA": 1, "PSBFreq": 5}
    cpu.set_msr(Msr.CTL, CTL.encode(**ctl), next_ip=0x1000)
    return cpu


def region_bytes(cpu: Processor) -> int:
    """Return the number of bytes in the current region."""
    return cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32


def tips(cpu: Processor, count: int) -> None:
    """Write TIPs of 3 bytes."""
    for index in range(count):
        cpu.indirect_jump(0x1000, 0x1000 + 2 * index)


@pytest.mark.spec("TRCEN-007", "TRCEN-003")
def test_only_clearing_trace_en_delivers_everything() -> None:
    cpu = start(TopaEntry(A), TopaEntry(TABLE, end=True), held_bytes=64)
    memory = cpu.unit.output.memory
    for index in range(300):
        tips(cpu, 1)
        assert region_bytes(cpu) <= max(0, 29 + 3 * (index + 1) - 64)
    content = memory.read(A, 4096)
    assert content[29 + 900 - 64 :] == bytes(4096 - 29 - 900 + 64)
    assert STATUS.decode(cpu.get_msr(Msr.STATUS)).PacketByteCnt == 29 + 900 - 64
    cpu.set_msr(Msr.CTL, 0, ip=0x1000)
    assert region_bytes(cpu) == 29 + 900 + 4
    names = [packet.name for packet in iterate_packets(memory.read(A, region_bytes(cpu)))]
    assert names.count("TIP") == 300
    assert names[-2:] == ["FUP", "TIP.PGD"]


@pytest.mark.spec("TSTOP-006")
@pytest.mark.parametrize("held", [0, 64])
def test_tracestop_does_not_flush_buffered_bytes(held: int) -> None:
    cpu = Processor(checked=False, parameters=Parameters(held_bytes=held))
    cpu.set_msr(Msr.OUTPUT_BASE, A)
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFF)
    cpu.set_msr(Msr.ADDR0_A, 0x4000)
    cpu.set_msr(Msr.ADDR0_B, 0x4FFF)
    ctl = CTL.encode(TraceEn=1, User=1, BranchEn=1, ADDR0_CFG=2)
    cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)
    tips(cpu, 40)
    cpu.indirect_jump(0x1000, 0x4000)
    assert cpu.unit.stopped
    memory = cpu.unit.output.memory
    seen = [packet.name for packet in iterate_packets(memory.read(A, region_bytes(cpu)))]
    assert ("TraceStop" in seen) == (held == 0)
    assert 0 < region_bytes(cpu) == 29 + 120 + 5 - held
    cpu.set_msr(Msr.CTL, 0)
    seen = [packet.name for packet in iterate_packets(memory.read(A, region_bytes(cpu)))]
    assert seen[-2:] == ["TIP.PGD", "TraceStop"]
    assert seen.count("TIP") == 40


@pytest.mark.spec("TERR-011")
@pytest.mark.parametrize("held", [0, 64])
def test_bytes_buffered_at_an_error_are_lost(held: int) -> None:
    """The region before the bad entry is complete; bytes after it are lost."""
    bad = TopaEntry(B).encode() | 1 << 1
    cpu = start(TopaEntry(A), bad, TopaEntry(TABLE, end=True), held_bytes=held)
    cpu.conditional(0x1000, 0x1002, 0x1010, True)
    tips(cpu, 1500)
    assert STATUS.decode(cpu.get_msr(Msr.STATUS)).Error == 1
    assert cpu.unit.state.held_back == b""
    cpu.set_msr(Msr.CTL, 0)
    pages = cpu.unit.output.memory.snapshot()
    assert sorted(pages) == [TABLE >> 12, A >> 12]
    assert STATUS.decode(cpu.get_msr(Msr.STATUS)).PacketByteCnt == 4096


@pytest.mark.spec("TXT-003")
def test_senter_loses_buffered_bytes() -> None:
    cpu = start(TopaEntry(A), TopaEntry(TABLE, end=True), held_bytes=64)
    tips(cpu, 100)
    before = region_bytes(cpu)
    cpu.getsec(0x1000, 0x1004)
    assert region_bytes(cpu) == before


@pytest.mark.spec("MSRCTL-002")
def test_acm_loses_no_buffered_bytes() -> None:
    """Section 33.2.9.6 suppresses packets, and loses none."""
    cpu = start(TopaEntry(A), TopaEntry(TABLE, end=True), held_bytes=64)
    tips(cpu, 100)
    cpu.acm_begin(0x1000)
    assert region_bytes(cpu) == 29 + 300


@pytest.mark.spec("TOPA-010", "TRCEN-008")
@pytest.mark.parametrize(
    ("policy", "regions"),
    [("none", (C, D)), ("entry", (A, D)), ("table", (A, B))],
)
def test_changed_table_is_read_by_the_cache_policy(policy: str, regions: tuple[int, int]) -> None:
    """Both entries change in the middle of the first region. By policy the unit has cached nothing,
    the current entry, or the table.
    """
    cpu = start(TopaEntry(A), TopaEntry(B), TopaEntry(TABLE, end=True), topa_cache=policy)
    memory = cpu.unit.output.memory
    tips(cpu, 100)
    at = region_bytes(cpu)
    assert cpu.unit.output.state.region_base == A
    write_topa_table(memory, TABLE, [TopaEntry(C), TopaEntry(D), TopaEntry(TABLE, end=True)])
    tips(cpu, 1)
    assert cpu.unit.output.state.region_base == regions[0]
    assert memory.read(regions[0] + at, 3)[0] == 0x2D
    tips(cpu, 1400)
    assert cpu.unit.output.state.region_base == regions[1]
    used = {number << 12 for number in memory.snapshot()} - {TABLE}
    assert used == {A, *regions}
    # The next enable reads the current table.
    cpu.set_msr(Msr.CTL, 0)
    cpu.set_msr(Msr.OUTPUT_BASE, TABLE)
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0)
    ctl = CTL.encode(TraceEn=1, User=1, BranchEn=1, ToPA=1)
    cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)
    assert cpu.unit.output.state.region_base == C


@pytest.mark.spec("TOPA-010")
def test_uncached_entry_is_the_current_one_at_each_write() -> None:
    cpu = start(TopaEntry(A), TopaEntry(B), TopaEntry(TABLE, end=True), topa_cache="none")
    memory = cpu.unit.output.memory
    tips(cpu, 1400)
    assert cpu.unit.output.state.region_base == B
    for at in (TABLE - 8, TABLE, TABLE + 16):
        memory.write_u64(at, TopaEntry(B).encode())
    memory.write_u64(TABLE + 8, TopaEntry(C).encode())
    tips(cpu, 1)
    assert cpu.unit.output.state.region_base == C


def test_uncached_entry_that_becomes_bad_is_an_error() -> None:
    cpu = start(TopaEntry(A), TopaEntry(TABLE, end=True), topa_cache="none")
    tips(cpu, 10)
    cpu.unit.output.memory.write_u64(TABLE, TopaEntry(A).encode() | 1 << 63)
    tips(cpu, 1)
    assert cpu.unit.error
    assert "MAXPHYADDR" in (cpu.unit.output.state.error or "")


@pytest.mark.spec("MSRCTL-027")
@pytest.mark.parametrize("freq", [0, 1, 3])
@pytest.mark.parametrize("delay", [0, 200])
def test_psb_spacing_tracks_the_period(freq: int, delay: int) -> None:
    """The average distance of PSBs is that of PSBFreq. A PSB is up to `delay` bytes and one event
    late; the next period starts where the PSB was due.
    """
    out = bytearray()
    cpu = Processor(
        checked=False,
        memory=Memory(observer=lambda _, data: out.extend(data)),
        parameters=Parameters(psb_delay=delay),
    )
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFFFF)
    ctl = CTL.encode(TraceEn=1, User=1, BranchEn=1, TSCEn=1, PSBFreq=freq)
    cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)
    random = Random(freq)
    period = 2048 << freq
    while len(out) < 20 * period:
        cpu.indirect_jump(0x1000, random.randrange(1 << 40))
    regions = [packet.offset for packet in iterate_packets(bytes(out)) if packet.name == "PSB"]
    gaps = [b - a for a, b in pairwise(regions)]
    assert len(gaps) >= 18
    assert abs(sum(gaps) / len(gaps) - period) <= (delay + 16) / len(gaps)
    assert all(abs(gap - period) <= delay + 16 for gap in gaps)


@pytest.mark.spec("SMM-008")
def test_smm_code_can_trace_itself_but_not_into_smram() -> None:
    """Output to memory that SMRR restricts is lost, also in SMM."""
    cpu = Processor(checked=False, memory=Memory(smrr=[(C, C + 0x1000)]), arch=ArchState(cpl=0))
    cpu.smi(0x1010)
    ctl = CTL.encode(TraceEn=1, OS=1, BranchEn=1)
    for base in (A, C):
        cpu.set_msr(Msr.OUTPUT_BASE, base)
        cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFF)
        cpu.set_msr(Msr.CTL, ctl, next_ip=0x8000)
        cpu.indirect_jump(0x8000, 0x8100)
        cpu.set_msr(Msr.CTL, 0, ip=0x8100)
        assert region_bytes(cpu) > 0
    assert {number << 12 for number in cpu.unit.output.memory.snapshot()} == {A}
    cpu.rsm()
    assert cpu.get_msr(Msr.CTL) & 1 == 0
