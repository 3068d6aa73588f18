"""The ToPA PMI: frozen counters, skid, and merged PMIs (section 33.2.7.2)."""

from __future__ import annotations

import pytest

from rtit.packets import iterate_packets
from rtit.processor import Processor
from rtit.registers import CTL, STATUS, Msr
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table
from rtit.unit.packet_commit import (
    COUNTERS_FROZEN,
    IA32_PERF_GLOBAL_STATUS,
    IA32_PERF_GLOBAL_STATUS_RESET,
    LBRS_FROZEN,
    TRACE_TOPA_PMI,
)
from rtit.unit.parameters.table import Parameters
from rtit.unit.state import IA32_DEBUGCTL, MSR_LASTBRANCH_TOS

TABLE = 0x10_0000
REGIONS = (0x20_0000, 0x30_0000, 0x40_0000)
LBR, FREEZE_LBRS, FREEZE_PERFMON = 1 << 0, 1 << 11, 1 << 12


class Traced:
    """Traces to a circle of three regions of 4 KB, the first `interrupts` with INT.

    `seen` has the stream offsets at which PMIs were signalled.
    """

    def __init__(self, *, interrupts: int = 1, stop: bool = False, **parameters: int) -> None:
        self.stream = bytearray()
        memory = Memory(observer=lambda _, data: self.stream.extend(data))
        values = Parameters(**parameters)  # type: ignore[arg-type]
        self.cpu = Processor(checked=False, memory=memory, parameters=values)
        entries = [
            TopaEntry(base, interrupt=n < interrupts, stop=stop and n == 1)
            for n, base in enumerate(REGIONS)
        ]
        write_topa_table(memory, TABLE, [*entries, TopaEntry(TABLE, end=True)])
        self.stream.clear()
        self.seen: list[int] = []
        self.cpu.unit.on_pmi = lambda: self.seen.append(len(self.stream))
        self.cpu.set_msr(Msr.OUTPUT_BASE, TABLE)

    def enable(self) -> None:
        ctl = CTL.encode(TraceEn=1, User=1, BranchEn=1, ToPA=1, PSBFreq=5)
        self.cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)

    def fill(self, size: int) -> None:
        """Write TIPs until the stream has `size` bytes, or 1 or 2 more."""
        while len(self.stream) < size:
            self.cpu.indirect_jump(0x1000, 0x1000 + len(self.stream) % 256)


@pytest.mark.spec("TPMI-004")
@pytest.mark.parametrize(
    ("debugctl", "frozen"),
    [
        (LBR, 0),
        (LBR | FREEZE_LBRS, LBRS_FROZEN),
        (LBR | FREEZE_PERFMON, COUNTERS_FROZEN),
        (LBR | FREEZE_LBRS | FREEZE_PERFMON, LBRS_FROZEN | COUNTERS_FROZEN),
    ],
)
def test_pmi_freezes_tracing_and_counters(debugctl: int, frozen: int) -> None:
    """Like every PMI it freezes LBRs and counters, if IA32_DEBUGCTL says so, but never the
    trace.
    """
    traced = Traced()
    cpu, unit = traced.cpu, traced.cpu.unit
    cpu.set_msr(IA32_DEBUGCTL, debugctl)
    traced.enable()
    cpu.last_branch(0x1000, 0x1010)
    assert (cpu.get_msr(MSR_LASTBRANCH_TOS), unit.counters_frozen) == (1, False)
    assert cpu.get_msr(IA32_PERF_GLOBAL_STATUS) == 0
    traced.fill(4096)
    assert len(traced.seen) == 1
    assert cpu.get_msr(IA32_PERF_GLOBAL_STATUS) == TRACE_TOPA_PMI | frozen
    assert unit.counters_frozen == bool(frozen & COUNTERS_FROZEN)
    cpu.last_branch(0x1010, 0x1020)
    assert cpu.get_msr(MSR_LASTBRANCH_TOS) == (1 if frozen & LBRS_FROZEN else 2)
    # The handler is traced.
    assert STATUS.decode(cpu.get_msr(Msr.STATUS)).TriggerEn == 1
    length = len(traced.stream)
    cpu.indirect_jump(0x1000, 0x4000)
    assert [p.name for p in iterate_packets(bytes(traced.stream[length:]))] == ["TIP"]
    # Requested freezes stay requested; frozen counters stay frozen until software clears them.
    assert cpu.get_msr(IA32_DEBUGCTL) == debugctl
    cpu.set_msr(IA32_PERF_GLOBAL_STATUS_RESET, TRACE_TOPA_PMI)
    assert cpu.get_msr(IA32_PERF_GLOBAL_STATUS) == frozen
    cpu.set_msr(IA32_PERF_GLOBAL_STATUS_RESET, frozen)
    assert cpu.get_msr(IA32_PERF_GLOBAL_STATUS) == 0
    before = cpu.get_msr(MSR_LASTBRANCH_TOS)
    cpu.last_branch(0x1020, 0x1030)
    assert cpu.get_msr(MSR_LASTBRANCH_TOS) == before + 1
    assert not unit.counters_frozen


@pytest.mark.spec("TPMI-002")
def test_late_pmi_arrives_after_its_region_is_filled() -> None:
    """100 bytes of the next region are written before it is taken; by default only those of the
    event that filled the region.
    """
    (at_once,) = signalled_at(pmi_skid=0)
    assert 4096 <= at_once < 4096 + 3
    (late,) = signalled_at(pmi_skid=100)
    assert late > 4096
    assert at_once + 100 <= late < at_once + 103
    # TIPs have 3 bytes.
    assert signalled_at(pmi_skid=99) == [at_once + 99]


def signalled_at(*, pmi_skid: int, interrupts: int = 1) -> list[int]:
    traced = Traced(interrupts=interrupts, pmi_skid=pmi_skid)
    traced.enable()
    traced.fill(3 * 4096 - 3)
    return traced.seen


@pytest.mark.spec("TPMI-005")
def test_two_filled_regions_signal_one_pmi_or_two() -> None:
    assert len(signalled_at(pmi_skid=0, interrupts=2)) == 2
    assert len(signalled_at(pmi_skid=4000, interrupts=2)) == 2
    (merged,) = signalled_at(pmi_skid=4100, interrupts=2)
    assert merged >= 2 * 4096


def test_late_pmi_is_pending_once_tracing_is_off() -> None:
    """33.3.3: Trace_ToPA_PMI is set by the time the flush completes."""
    traced = Traced(pmi_skid=1000)
    traced.enable()
    traced.fill(4096)
    assert traced.cpu.get_msr(IA32_PERF_GLOBAL_STATUS) == 0
    traced.cpu.set_msr(Msr.CTL, 0, ip=0x1000)
    assert len(traced.seen) == 1
    assert traced.cpu.get_msr(IA32_PERF_GLOBAL_STATUS) == TRACE_TOPA_PMI
    traced.enable()
    traced.fill(8000)
    assert len(traced.seen) == 1


@pytest.mark.spec("TSTP-005")
def test_late_pmi_arrives_with_the_stop() -> None:
    """The skid is so long that the STOP region is filled, too: the handler finds Stopped set."""
    traced = Traced(pmi_skid=5000, stop=True)
    traced.enable()
    stopped: list[bool] = []
    traced.cpu.unit.on_pmi = lambda: stopped.append(traced.cpu.unit.stopped)
    traced.fill(2 * 4096)
    assert stopped == [True]


def test_late_pmi_survives_a_snapshot() -> None:
    traced = Traced(pmi_skid=100)
    traced.enable()
    traced.fill(4096 + 50)
    snapshot = traced.cpu.unit.snapshot()
    traced.fill(4096 + 200)
    assert len(traced.seen) == 1
    del traced.stream[4096 + 50 :]
    traced.cpu.unit.restore(snapshot)
    traced.fill(4096 + 200)
    assert len(traced.seen) == 2


@pytest.mark.spec("TPMI-008", "TPMI-007")
def test_pmi_with_tracing_off_arrives_again_at_enable() -> None:
    """The handler ignores a PMI with TraceEn=0 and leaves PendTopaPMI set, so that the PMI arrives
    again at the next enable. Then the handler clears the bit, and no other PMI follows.
    """
    traced = Traced()
    cpu = traced.cpu
    handled: list[int] = []

    def handler() -> None:
        handled.append(cpu.get_msr(Msr.CTL) & 1)
        cpu.set_msr(IA32_PERF_GLOBAL_STATUS_RESET, TRACE_TOPA_PMI)

    cpu.unit.on_pmi = handler
    ctl = CTL.encode(TraceEn=1, User=1, BranchEn=1, ToPA=1, PSBFreq=5, InjectPsbPmiOnEnable=1)
    cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)
    while len(traced.stream) < 4096 - 3:
        cpu.indirect_jump(0x1000, 0x1000 + len(traced.stream) % 256)
    # The last packets fill the region; TraceEn is 0 then.
    cpu.set_msr(Msr.CTL, ctl & ~1, ip=0x1000)
    assert handled == [0]
    assert STATUS.decode(cpu.get_msr(Msr.STATUS)).PendTopaPMI == 1
    cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)
    assert handled == [0, 1]
    cpu.set_msr(Msr.CTL, ctl & ~1, ip=0x1000)
    cpu.set_msr(Msr.STATUS, cpu.get_msr(Msr.STATUS) & ~STATUS["PendTopaPMI"].mask)
    cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)
    cpu.set_msr(Msr.CTL, ctl & ~1, ip=0x1000)
    assert handled == [0, 1]
