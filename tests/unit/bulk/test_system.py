"""The bulk packetizer writes the same bytes as the reference unit for the events of a system."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit._core import BulkUnit
from rtit.processor import Processor
from rtit.registers import CTL, Msr
from rtit.unit.arch_state import CODE_BITS, ArchState
from rtit.unit.events.event_trace import CfeType, EventReport, page_fault_report
from rtit.unit.time_model import TimeModel
from support.properties import examples

BUFFER, SIZE = 0x1000_0000, 1 << 20
START = 0x10_0000
TABLES = (0x1000, 0x2000, 0x2001, 0x8000_0000_0000_3000)
"""CR3 values: with one page table twice, and with the bit that keeps TLB entries."""
State = tuple[bool, int, bool]


class BothUnits:
    """Gives the same events to the reference and to the bulk unit."""

    def __init__(self, ctl: int, cr3_match: int, state: State, cr3: int) -> None:
        time = TimeModel()
        self._cpu = Processor(arch=self._arch(state, cr3), time=time)
        self._cpu.set_msr(Msr.OUTPUT_BASE, BUFFER)
        self._cpu.set_msr(Msr.OUTPUT_MASK_PTRS, SIZE - 1)
        self._cpu.set_msr(Msr.CR3_MATCH, cr3_match)
        self._cpu.set_msr(Msr.CTL, ctl | 1, next_ip=START)
        self._bulk = BulkUnit(ctl=ctl, cr3_match=cr3_match, tsc_start=time.tsc_start)
        self._bulk.start(START, state, cr3)
        self._cr3 = cr3
        self._state = state

    @staticmethod
    def _arch(state: State, cr3: int) -> ArchState:
        user, bits, flag = state
        cs_l, cs_d = CODE_BITS[bits]
        return ArchState(cpl=3 if user else 0, cs_l=cs_l, cs_d=cs_d, cr3=cr3, interrupt_flag=flag)

    def branch(self, clock: int, next_ip: int, target: int, taken: bool) -> None:
        """Execute a conditional branch."""
        self._cpu.unit.at(clock)
        self._cpu.unit.conditional(next_ip - 2, next_ip, target, taken)
        from rtit.capture.events import EVENT_RECORD, EventKind

        fields = (EventKind.CONDITIONAL, int(taken), 2, 0, next_ip - 2, target, clock, 0)
        self._bulk.feed(EVENT_RECORD.pack(*fields))

    def transfer(
        self,
        clock: int,
        target: int,
        state: State,
        event_ip: int | None = None,
        vector: int | None = None,
        page_fault: int | None = None,
        iret: int | None = None,
    ) -> None:
        """Execute a far branch, or take an interrupt or exception."""
        report = None
        if page_fault is not None:
            report = page_fault_report(page_fault)
        elif vector is not None:
            report = EventReport(CfeType.INTR, vector)
        elif iret is not None:
            report = EventReport(CfeType.IRET)
        self._cpu.unit.at(clock)
        self._cpu.unit.transfer(
            target,
            self._arch(state, self._cr3),
            event_ip=event_ip,
            report=report,
            report_ip=iret,
        )
        self._bulk.transfer(clock, target, state, event_ip, vector, page_fault, iret)
        self._state = state

    def mov_cr3(self, clock: int, ip: int, cr3: int) -> None:
        """Execute MOV to CR3."""
        self._cr3 = cr3
        self._cpu.unit.at(clock)
        self._cpu.unit.mov_cr3(ip, ip + 3, self._arch(self._state, cr3))
        self._bulk.mov_cr3(clock, ip + 3, cr3)

    def set_interrupt_flag(self, clock: int, ip: int, flag: bool) -> None:
        """Execute STI or CLI."""
        self._state = (*self._state[:2], flag)
        self._cpu.unit.at(clock)
        self._cpu.unit.change_mode(ip, ip + 1, self._arch(self._state, self._cr3))
        self._bulk.set_interrupt_flag(clock, ip, ip + 1, flag)

    def sleep(self, clock: int, ip: int, state: int, mwait: tuple[int, int] | None) -> None:
        """Sleep by HLT (C1), or by MWAIT with hints and extensions, until an interrupt."""
        sub_state = mwait[0] & 15 if mwait is not None else 0
        self._cpu.unit.at(clock)
        self._cpu.unit.sleep(ip, state, sub_state, mwait=mwait)
        self._cpu.unit.wake(last=state, deepest=state, reason=1)
        self._bulk.sleep(clock, ip, state, sub_state, mwait)
        self._bulk.wake(clock, state, state, 1)

    def system_management(self, clock: int, ip: int) -> None:
        """Enter system management mode before `ip`, and return after 10 instructions."""
        self._cpu.unit.at(clock)
        self._cpu.unit.smi(ip)
        self._bulk.enter_smm(clock, ip)
        self._cpu.unit.at(clock + 10)
        self._cpu.unit.rsm(ip)
        self._bulk.leave_smm(clock + 10, ip, self._state, self._cr3)

    def packets(self, clock: int) -> tuple[bytes, bytes]:
        """End the trace; return the packets of the reference and of the bulk unit."""
        self._cpu.unit.at(clock)
        self._cpu.set_msr(Msr.CTL, 0, ip=self._cpu.unit.state.ip)
        self._bulk.stop(clock)
        written = self._cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32
        return self._cpu.unit.output.memory.read(BUFFER, written), self._bulk.take_output()


def run_both_units(seed: int, ctl: int, cr3_match: int) -> tuple[bytes, bytes]:
    """Return the packets of both units for random events."""
    random = Random(seed)

    def any_state() -> State:
        return random.random() < 0.5, random.choice((64, 64, 64, 32, 16)), random.random() < 0.5

    def any_address() -> int:
        return random.choice((0x40_0000, 0xFFFF_FFFF_8100_0000)) + random.randrange(1 << 12)

    units = BothUnits(ctl, cr3_match, any_state(), random.choice(TABLES))
    clock = 0
    for _ in range(60):
        clock += random.choice((1, 3, 40, 700))
        ip, target = any_address(), any_address()
        choice = random.randrange(9)
        if choice < 2:
            units.branch(clock, ip, target, random.random() < 0.5)
        elif choice == 2:
            units.transfer(clock, target, any_state())
        elif choice == 3:
            vector = random.randrange(256)
            page_fault = any_address() if vector % 2 else None
            vector = 14 if page_fault is not None else vector
            units.transfer(clock, target, any_state(), ip, vector, page_fault)
        elif choice == 4:
            units.transfer(clock, target, any_state(), iret=ip)
        elif choice == 5:
            units.mov_cr3(clock, ip, random.choice(TABLES))
        elif choice == 6:
            clock += 10
            units.system_management(clock - 10, ip)
        elif choice == 7:
            hints = random.randrange(0xF0)
            mwait = (hints, random.randrange(4)) if random.random() < 0.5 else None
            units.sleep(clock, ip, hints >> 4 if mwait else 0, mwait)
        else:
            units.set_interrupt_flag(clock, ip, random.random() < 0.5)
    return units.packets(clock + 1)


@examples(60)
@given(
    st.integers(0, 1 << 32),
    st.sampled_from([{"OS": 1}, {"User": 1}, {"OS": 1, "User": 1}]),
    st.sampled_from([{}, {"CYCEn": 1}, {"MTCEn": 1, "MTCFreq": 3}]),
    st.sampled_from([{}, {"EventEn": 1}, {"PwrEvtEn": 1}]),
    st.sampled_from([{}, {"CR3Filter": 1}]),
)
def test_system_events_have_the_packets_of_the_reference(
    seed: int,
    levels: dict[str, int],
    timing: dict[str, int],
    events: dict[str, int],
    filters: dict[str, int],
) -> None:
    ctl = CTL.encode(TSCEn=1, BranchEn=1, **levels, **timing, **events, **filters)
    reference, bulk = run_both_units(seed, ctl, TABLES[1])
    assert bulk.hex() == reference.hex()


def test_width_of_code_must_exist() -> None:
    with pytest.raises(ValueError, match="not 48"):
        BulkUnit().start(0, (False, 48, False), 0)
