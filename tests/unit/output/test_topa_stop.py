"""Effects of ToPA STOP, a bad entry and the PMI on the unit (section 33.2.7.2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rtit.packets import iterate_packets
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, STATUS, Msr
from rtit.unit.events.xsave import IA32_XSS, PT_STATE
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table

TABLE = 0x10_0000
FIRST, SECOND = 0x20_0000, 0x30_0000
USER = CTL.encode(TraceEn=1, User=1, BranchEn=1, ToPA=1, PSBFreq=5)
BOTH = USER | CTL.encode(OS=1)


def start(
    *entries: TopaEntry | int,
    ctl: int = USER,
    cpl: int = 3,
) -> tuple[Processor, bytearray]:
    out = bytearray()
    memory = Memory(observer=lambda _, data: out.extend(data))
    cpu = Processor(checked=False, memory=memory, arch=ArchState(cpl=cpl))
    write_topa_table(cpu.unit.output.memory, TABLE, entries)
    out.clear()
    cpu.set_msr(Msr.OUTPUT_BASE, TABLE)
    cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)
    return cpu, out


def fill(cpu: Processor, out: bytearray, size: int) -> None:
    """Write TIPs of 3 bytes until at most 2 bytes of `size` are left."""
    while size - len(out) > 2:
        cpu.indirect_jump(0x1000, 0x1000 + len(out) % 256)


def status(cpu: Processor) -> dict[str, int]:
    return dict(STATUS.decode(cpu.get_msr(Msr.STATUS)))


@pytest.mark.spec("TSTP-001", "TSTP-002")
def test_stop_region_ends_output_in_the_middle_of_a_packet() -> None:
    """Buffered bytes are discarded; no packet reports the end."""
    cpu, out = start(TopaEntry(FIRST, stop=True), TopaEntry(TABLE, end=True))
    fill(cpu, out, 4096)
    left = 4096 - len(out)
    assert left > 0
    cpu.conditional(0x1000, 0x1002, 0x1010, True)
    cpu.indirect_jump(0x1010, 0xFFFF_FFFF_8100_0000)
    assert len(out) == 4096
    expected = bytes.fromhex("06 6d")[:left]
    assert out[-left:] == expected
    assert {name: status(cpu)[name] for name in ("Stopped", "TriggerEn", "Error")} == {
        "Stopped": 1,
        "TriggerEn": 0,
        "Error": 0,
    }
    cpu.indirect_jump(0x1000, 0x2000)
    cpu.set_msr(Msr.CTL, 0, ip=0x2000)
    assert len(out) == 4096
    whole = [packet.name for packet in iterate_packets(bytes(out[: 4096 - left]))]
    assert "TIP.PGD" not in whole
    assert "TraceStop" not in whole


@pytest.mark.spec("TPMI-001")
@pytest.mark.parametrize("after", [TopaEntry(TABLE, end=True), TopaEntry(SECOND).encode() | 2])
def test_end_without_int_signals_no_pmi(after: TopaEntry | int) -> None:
    cpu, out = start(TopaEntry(FIRST, stop=isinstance(after, TopaEntry)), after)
    fill(cpu, out, 4096)
    cpu.indirect_jump(0x1000, 0xFFFF_FFFF_8100_0000)
    assert status(cpu)["Stopped"] | status(cpu)["Error"]
    assert cpu.unit.state.pmis == 0


@pytest.mark.spec("TSTP-005")
def test_stop_precedes_the_pmi() -> None:
    cpu, out = start(TopaEntry(FIRST, stop=True, interrupt=True), TopaEntry(TABLE, end=True))
    seen: list[tuple[int, int]] = []
    cpu.unit.on_pmi = lambda: seen.append((status(cpu)["Stopped"], status(cpu)["TriggerEn"]))
    fill(cpu, out, 4096)
    assert seen == []
    cpu.indirect_jump(0x1000, 0xFFFF_FFFF_8100_0000)
    assert seen == [(1, 0)]


@pytest.mark.spec("TERR-010", "OPERR-002")
@pytest.mark.parametrize(
    "bad",
    [
        TopaEntry(SECOND).encode() | 1 << 1,
        TopaEntry(SECOND).encode() | 1 << 10,
        TopaEntry(SECOND).encode() | 1 << 63,
        TopaEntry(0x30_1000, 8192).encode(),
        TopaEntry(TABLE, end=True).encode() | 1 << 4,
        TopaEntry(TABLE, end=True).encode() | 1 << 2,
    ],
)
def test_bad_entry_ends_tracing_when_it_is_reached(bad: int) -> None:
    cpu, out = start(TopaEntry(FIRST), bad, TopaEntry(TABLE, end=True))
    fill(cpu, out, 4096)
    assert {name: status(cpu)[name] for name in ("Error", "TriggerEn")} == {
        "Error": 0,
        "TriggerEn": 1,
    }
    cpu.indirect_jump(0x1000, 0xFFFF_FFFF_8100_0000)
    assert len(out) == 4096
    assert {name: status(cpu)[name] for name in ("Error", "TriggerEn", "Stopped")} == {
        "Error": 1,
        "TriggerEn": 0,
        "Stopped": 0,
    }
    cpu.indirect_jump(0x1000, 0x2000)
    assert len(out) == 4096


Again = Callable[[Processor], None]


def clear_by_wrmsr(cpu: Processor) -> None:
    cpu.set_msr(Msr.CTL, BOTH & ~1, ip=0x2000)
    cpu.set_msr(Msr.CTL, BOTH, next_ip=0x2000)


def clear_by_smi(cpu: Processor) -> None:
    cpu.smi(0x2000)
    cpu.rsm()


def clear_by_xsaves(cpu: Processor) -> None:
    cpu.set_msr(IA32_XSS, PT_STATE)
    component = cpu.xsaves(0x2000, 0x2004)
    cpu.xrstors(0x2004, 0x2008, component)


def clear_by_warm_reset(cpu: Processor) -> None:
    cpu.reset(cold=False)
    cpu.set_msr(Msr.CTL, BOTH, next_ip=0x2000)


def clear_by_acm(cpu: Processor) -> None:
    cpu.acm_begin(0x2000)
    cpu.acm_end(0x2000)


@pytest.mark.spec("TSTP-006", "TSTP-004")
@pytest.mark.parametrize(
    "again", [clear_by_wrmsr, clear_by_smi, clear_by_xsaves, clear_by_warm_reset, clear_by_acm]
)
def test_no_error_until_tracing_is_enabled_with_stopped_cleared(again: Again) -> None:
    cpu, out = start(TopaEntry(FIRST, stop=True), TopaEntry(TABLE, end=True), ctl=BOTH, cpl=0)
    fill(cpu, out, 4096)
    cpu.indirect_jump(0x1000, 0xFFFF_FFFF_8100_0000)
    pointers = cpu.get_msr(Msr.OUTPUT_BASE), cpu.get_msr(Msr.OUTPUT_MASK_PTRS)
    wanted = {"Stopped": 1, "TriggerEn": 0, "Error": 0}
    for _ in range(2):
        again(cpu)
        assert {name: status(cpu)[name] for name in wanted} == wanted
        assert cpu.get_msr(Msr.CTL) & 1
        assert (cpu.get_msr(Msr.OUTPUT_BASE), cpu.get_msr(Msr.OUTPUT_MASK_PTRS)) == pointers
    cpu.indirect_jump(0x2000, 0x3000)
    assert len(out) == 4096
    cpu.set_msr(Msr.CTL, BOTH & ~1)
    cpu.set_msr(Msr.STATUS, 0)
    cpu.set_msr(Msr.CTL, BOTH)
    assert (status(cpu)["Error"], status(cpu)["TriggerEn"]) == (1, 0)
