"""Events of the output: flush, ToPA STOP, errors during a trace, PMIs (sections 33.2.7.2, 33.3.3,
33.3.10).
"""

from __future__ import annotations

import pytest

from rtit.packets import iterate_packets
from rtit.processor import Processor
from rtit.registers import CTL, STATUS, Msr
from rtit.unit.memory import Memory, StoreObserver
from rtit.unit.output import TopaEntry, write_topa_table
from rtit.unit.packet_commit import IA32_PERF_GLOBAL_STATUS, TRACE_TOPA_PMI

TABLE = 0x10_0000
REGIONS = (0x20_0000, 0x30_0000, 0x40_0000)


def topa(*entries: TopaEntry | int, observer: StoreObserver | None = None, **ctl: int) -> Processor:
    cpu = Processor(checked=False, memory=Memory(observer=observer))
    write_topa_table(cpu.unit.output.memory, TABLE, entries)
    cpu.set_msr(Msr.OUTPUT_BASE, TABLE)
    fields = {"TraceEn": 1, "User": 1, "BranchEn": 1, "ToPA": 1, "PSBFreq": 5} | ctl
    cpu.set_msr(Msr.CTL, CTL.encode(**fields), next_ip=0x1000)
    return cpu


def fill(cpu: Processor, count: int) -> None:
    """Write `count` TIPs of 3 bytes."""
    for index in range(count):
        cpu.indirect_jump(0x1000, 0x1000 + 2 * index)


def status(cpu: Processor) -> dict[str, int]:
    return dict(STATUS.decode(cpu.get_msr(Msr.STATUS)))


@pytest.mark.spec("TRCEN-003", "TRCEN-005")
def test_clearing_traceen_delivers_everything() -> None:
    cpu = topa(TopaEntry(REGIONS[0]), TopaEntry(TABLE, end=True))
    memory = cpu.unit.output.memory
    cpu.conditional(0x1000, 0x1002, 0x1010, True)
    assert memory.read(REGIONS[0], 4096).rstrip(b"\0")[-3:] == bytes.fromhex("310010")
    cpu.set_msr(Msr.CTL, 0, ip=0x1010)
    written = memory.read(REGIONS[0], cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32)
    assert [p.name for p in iterate_packets(written)][-3:] == ["TNT", "FUP", "TIP.PGD"]
    assert cpu.get_msr(Msr.OUTPUT_BASE) == TABLE


@pytest.mark.spec("TRCEN-006", "TPMI-001")
def test_flush_may_fill_a_region() -> None:
    cpu = topa(
        TopaEntry(REGIONS[0], interrupt=True), TopaEntry(REGIONS[1]), TopaEntry(TABLE, end=True)
    )
    while cpu.unit.output.state.output_offset < 4094:
        fill(cpu, 1)
    assert cpu.get_msr(IA32_PERF_GLOBAL_STATUS) == 0
    cpu.set_msr(Msr.CTL, 0)
    assert cpu.get_msr(IA32_PERF_GLOBAL_STATUS) == TRACE_TOPA_PMI


@pytest.mark.spec("TPMI-001", "TPMI-006", "MSRSTS-012")
@pytest.mark.parametrize("inject", [0, 1])
def test_filled_int_region_raises_pmi(inject: int) -> None:
    cpu = topa(
        TopaEntry(REGIONS[0], interrupt=True),
        TopaEntry(REGIONS[1]),
        TopaEntry(TABLE, end=True),
        InjectPsbPmiOnEnable=inject,
    )
    seen: list[int] = []
    cpu.unit.on_pmi = lambda: seen.append(1)
    fill(cpu, 1300)
    assert not seen
    fill(cpu, 100)
    assert seen == [1]
    assert status(cpu)["PendTopaPMI"] == inject
    assert status(cpu)["TriggerEn"] == 1
    cpu.set_msr(Msr.CTL, 0)
    assert status(cpu)["PendTopaPMI"] == inject


@pytest.mark.spec("MSRSTS-008", "EN-005", "EN-006")
def test_topa_stop_ends_without_a_packet() -> None:
    cpu = topa(TopaEntry(REGIONS[0], stop=True), TopaEntry(TABLE, end=True))
    fill(cpu, 2000)
    assert status(cpu) | {"PacketByteCnt": 0} == {
        "FilterEn": 1,
        "ContextEn": 1,
        "TriggerEn": 0,
        "Error": 0,
        "Stopped": 1,
        "PendPSB": 0,
        "PendTopaPMI": 0,
        "PacketByteCnt": 0,
    }
    assert status(cpu)["PacketByteCnt"] == 4096
    region = cpu.unit.output.memory.read(REGIONS[0], 4096)
    assert not {"TIP.PGD", "TraceStop"} & {p.name for p in iterate_packets(region)}
    cpu.set_msr(Msr.CTL, 0)
    assert cpu.unit.output.memory.read(REGIONS[0], 4096) == region
    assert cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32 == 4096
    assert cpu.unit.stopped


@pytest.mark.spec("OPERR-002", "OPERR-003", "OPERR-004", "MSRSTS-007")
def test_output_error_ends_tracing_until_cleared() -> None:
    cpu = topa(
        TopaEntry(REGIONS[0]), TopaEntry(REGIONS[1]).encode() | 1 << 1, TopaEntry(TABLE, end=True)
    )
    fill(cpu, 1000)
    assert status(cpu)["Error"] == 0
    fill(cpu, 1000)
    assert (status(cpu)["Error"], status(cpu)["TriggerEn"]) == (1, 0)
    assert cpu.unit.error
    assert "reserved" in (cpu.unit.output.state.error or "")
    ctl = cpu.get_msr(Msr.CTL)
    cpu.set_msr(Msr.CTL, ctl & ~1)
    assert status(cpu)["Error"] == 1
    write_topa_table(cpu.unit.output.memory, TABLE, [TopaEntry(REGIONS[0]), TopaEntry(REGIONS[1])])
    # The cause is gone, but tracing does not start until software clears Error.
    cpu.set_msr(Msr.CTL, ctl)
    assert (status(cpu)["Error"], status(cpu)["TriggerEn"]) == (1, 0)
    cpu.set_msr(Msr.CTL, ctl & ~1)
    cpu.set_msr(Msr.STATUS, 0)
    cpu.set_msr(Msr.CTL, ctl)
    assert status(cpu)["TriggerEn"] == 1


@pytest.mark.spec("TOPA-002")
def test_stream_continues_in_the_next_region() -> None:
    stream = bytearray()
    cpu = topa(
        TopaEntry(REGIONS[0]),
        TopaEntry(REGIONS[1], 8192),
        TopaEntry(REGIONS[2]),
        TopaEntry(TABLE, end=True),
        observer=lambda _, data: stream.extend(data),
    )
    fill(cpu, 4000)
    memory = cpu.unit.output.memory
    parts = [(REGIONS[0], 4096), (REGIONS[1], 8192), (REGIONS[2], 4096)]
    image = b"".join(memory.read(base, size) for base, size in parts)
    assert image == bytes(stream).ljust(len(image), b"\0")
    assert sum(p.name == "TIP" for p in iterate_packets(bytes(stream))) == 4000


@pytest.mark.spec("MSRGEN-004")
def test_units_are_independent() -> None:
    one, two = Processor(checked=False), Processor(checked=False)
    one.set_msr(Msr.CR3_MATCH, 0x5000)
    one.set_msr(Msr.STATUS, 0x30)
    assert two.get_msr(Msr.CR3_MATCH) == 0
    assert two.get_msr(Msr.STATUS) == 0


def test_fabric_receives_all_packets() -> None:
    sent = bytearray()
    cpu = Processor(checked=False, fabric=sent.extend)
    cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, User=1, BranchEn=1, FabricEn=1), next_ip=0x1000)
    cpu.set_msr(Msr.CTL, 0)
    assert [p.name for p in iterate_packets(bytes(sent))][-2:] == ["FUP", "TIP.PGD"]
    assert cpu.unit.output.memory.snapshot() == {}
