"""The bulk packetizer writes the same bytes as the reference unit for any sequence of events.

The reference is the whole recorder over `rtit.unit`. Both get the same capture events of one
thread; the bulk unit is replaced by one with its saved state at random points.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtit._core import BulkUnit
from rtit.capture.events import EVENT_RECORD, EventKind
from rtit.capture.options import PtOptions
from rtit.capture.ptrace.recorder import OutputSchemeSetup, PtraceRecorder
from rtit.perfdata import Writer
from rtit.perfdata.filters import AddressFilter
from rtit.processor import Processor
from rtit.registers import FULL, Msr
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table
from rtit.unit.parameters.table import PSB_PLUS_ORDER, Parameters
from rtit.unit.time_model import TimeModel
from support.properties import examples

TID = 77
CODE = 0x40_0000
ADDRESSES = (CODE, CODE + 0x1_0000, 0x5555_5555_0000, 0x7FFF_FFFF_F000, 0x8000_0000_0000, 1 << 63)
"""Bases of targets: near each other, far apart, and not canonical."""
GAPS = (0, 1, 2, 5, 11, 40, 700, 5_000, 70_000)
NEAR: tuple[EventKind, ...] = (EventKind.CONDITIONAL,) * 8 + (
    EventKind.JUMP,
    EventKind.CALL,
    EventKind.RETURN,
) * 2
NEAR += (EventKind.INDIRECT_JUMP, EventKind.INDIRECT_CALL)
OTHER = (
    EventKind.FAR,
    EventKind.SYSCALL,
    EventKind.INTERRUPT,
    EventKind.FAULT,
    EventKind.SOFT_INT,
    EventKind.SWITCH,
)


@dataclass(frozen=True, slots=True)
class Overflow:
    """Packets are lost; afterwards the thread is at `ip`, or in the kernel."""

    clock: int
    ip: int | None


Step = bytes | tuple[int, int, int] | Overflow | None
"""A step: records; (range number, first, last) when its file is mapped; None to save and restore
the state.
"""


@dataclass(frozen=True, slots=True)
class StopRegion(OutputSchemeSetup):
    """A STOP entry with `room` bytes left."""

    room: int = 4096

    def install_output(self, cpu: Processor, memory: Memory) -> None:
        entries = [TopaEntry(0x30_0000, stop=True), TopaEntry(0x10_0000, end=True)]
        write_topa_table(memory, 0x10_0000, entries)
        cpu.wrmsr(Msr.OUTPUT_BASE, 0x10_0000)
        cpu.wrmsr(Msr.OUTPUT_MASK_PTRS, (4096 - self.room) << 32 | 0x7F)


class Collector:
    """Stands in for a perf.data writer; collects the PT bytes alone."""

    def __init__(self) -> None:
        self.data = bytearray()

    def auxtrace(self, tid: int, pid: int, data: bytes, offset: None, time: int, cpu: int) -> None:
        self.data += data

    @property
    def size(self) -> int:
        return len(self.data)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@dataclass
class Case:
    """Settings and steps of one run."""

    options: PtOptions = field(default_factory=PtOptions)
    time: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    psb_cyc: bool = True
    filters: tuple[str, ...] = ()
    room: int | None = None
    seed: int = 0
    length: int = 50

    def steps(self) -> Iterator[Step]:
        """Yield the steps of a thread: start, random events, end. Some threads alternate leave and
        enter.
        """
        random = Random(self.seed + 1)
        sensible, user, clock = random.random() < 0.7, True, random.choice(GAPS)
        calls: list[int] = []
        cuts, maps = random.choice((0, 0.05, 0.5)), 0.05 * bool(self.filters)
        gaps = GAPS[: random.choice((3, 7, 7, 8, 9))]
        addresses = ADDRESSES[: random.choice((1, 2, 6))]
        losses = random.choice((0, 0, 0.1))
        others, bursts = random.choice((0, 0.05, 0.2)), random.choice((0.02, 0.2))
        yield record(EventKind.THREAD, clock)
        if self.filters and random.random() < 0.8:
            yield 0, CODE, CODE + random.choice((0x7F, 0x1_0080))
        yield record(EventKind.RESUME, clock, target=CODE)
        for _ in range(self.length):
            if random.random() < cuts:
                yield None
            if random.random() < maps:
                first = random.choice(ADDRESSES[:4]) + random.randrange(200)
                yield random.randrange(len(self.filters)), first, first + random.randrange(200)
            clock += random.choice(gaps)
            if random.random() < losses:
                user = random.random() < 0.6
                address = random.choice(addresses) + random.randrange(256)
                yield Overflow(clock, address if user else None)
                calls.clear()
                continue
            kind = random.choice(OTHER if random.random() < others else NEAR)
            if (not user) if sensible else random.random() < 0.05:
                kind = EventKind.RESUME if random.random() < 0.8 else EventKind.SWITCH
            ip, target = (random.choice(addresses) + random.randrange(256) for _ in range(2))
            length, flags = random.choice((2, 5, 15)), random.randrange(2)
            if kind == EventKind.RETURN and calls and random.random() < 0.9:
                target = calls.pop()
            if kind in (EventKind.CALL, EventKind.INDIRECT_CALL):
                if random.random() < 0.1:
                    target = ip + length
                else:
                    calls.append(ip + length)
            if kind == EventKind.SWITCH:
                flags = int(user)
            elif kind == EventKind.FAR:
                flags = 0  # to 64-bit code: BulkUnit has no other
            elif kind in OTHER:
                user = False
            elif kind == EventKind.RESUME:
                user = True
            times = random.randrange(200) if random.random() < bursts and kind in NEAR else 1
            yield record(kind, clock, flags, length, ip, target) * times
        yield record(EventKind.EXIT, clock + random.choice(GAPS))

    def reference_packets(self) -> bytes:
        """Return the packets that the recorder writes."""
        profile = FULL if self.psb_cyc else replace(FULL, psb_cyc=False)
        collector = Collector()
        files = [AddressFilter(each, f"/{n}", 0, 1 << 60) for n, each in enumerate(self.filters)]
        recorder = PtraceRecorder(
            cast(Writer, collector),
            self.options,
            files,
            profile=profile,
            time=TimeModel(**self.time),
            parameters=Parameters(**self.parameters),
            output=None if self.room is None else StopRegion(1, 4096, self.room),
        )
        for step in self.steps():
            if isinstance(step, bytes):
                recorder.process_events(step, ())
            elif isinstance(step, Overflow):
                skip_overflow(recorder, step)
            elif step is not None:
                number, first, last = step
                size = last - first + 1
                blob = struct.pack("<QIIIIQQ", 0, 5, 2, 0, 0, 0, 0) + f"/{number}\0".encode()
                recorder.process_events(record(EventKind.MMAP, 0, 0, 0, first, size), [blob])
        recorder.close()
        return bytes(collector.data)

    def unit(self, **more: int) -> BulkUnit:
        """Return a bulk unit with these settings."""
        if self.room is not None:
            more["stop"] = self.room
        return BulkUnit(
            ctl=self.options.rtit_ctl,
            psb_cyc=self.psb_cyc,
            **self.time,
            **self.parameters,
            **more,
        )

    def bulk_packets(self) -> bytes:
        """Return the packets that the bulk unit writes."""
        unit, data = self.unit(), bytearray()
        kinds = [1 if each == "filter" else 2 for each in self.filters]
        ranges = [(kind, 0, 0) for kind in kinds]
        unit.set_ranges(ranges)
        for step in self.steps():
            if isinstance(step, bytes):
                unit.feed(step)
            elif isinstance(step, Overflow):
                unit.overflow(step.clock, step.ip)
            elif step is None:
                data += unit.take_output()
                state, unit = unit.save_state(), self.unit()
                unit.restore_state(state)
                assert unit.save_state() == state
            else:
                number, first, last = step
                ranges[number] = kinds[number], first, last
                unit.set_ranges(ranges)
        data += unit.take_output()
        assert unit.written == len(data)
        return bytes(data)


def record(
    kind: EventKind, clock: int, flags: int = 0, length: int = 0, ip: int = TID, target: int = 0
) -> bytes:
    return EVENT_RECORD.pack(kind, flags, length, TID, ip, target, clock, 0)


def skip_overflow(recorder: PtraceRecorder, step: Overflow) -> None:
    """Events between the start and the end of an overflow have no effect."""
    cpu = recorder._threads[TID].cpu
    cpu.at(step.clock)
    cpu.unit.begin_overflow()
    cpu.interrupt(cpu.ip, 0xFFFF_FFFF_8100_2000)
    if step.ip is not None:
        cpu.resume(step.ip)
    cpu.unit.end_overflow()


CRYSTALS: tuple[dict[str, int], ...] = (
    {},
    {"crystal_hz": 24_000_000, "tsc_numerator": 250, "tsc_denominator": 3}
    | {"max_non_turbo_ratio": 20},
    {"crystal_hz": 19_200_000, "tsc_numerator": 125, "tsc_denominator": 1}
    | {"max_non_turbo_ratio": 24},
)


def make_case(seed: int, length: int) -> Case:
    """Return a case drawn from the seed alone, so that all settings are equally frequent."""
    pick = Random(seed)
    one = pick.choice
    psb_cyc = one((True, True, True, False))
    cyc = psb_cyc and one((True, False))
    form = one(("short", "long", "mixed"))
    ratio = one((None, 7, 33))
    return Case(
        options=PtOptions(
            cyc=int(cyc),
            cyc_thresh=one((0, pick.randrange(16))) * cyc,
            mtc=one((0, 1)),
            mtc_period=pick.randrange(10),
            tsc=one((0, 1)),
            noretcomp=one((0, 0, 1)),
            notnt=one((0, 0, 0, 1)),
            pt=one((1, 1, 1, 0)),
            branch=one((1, 1, 1, 1, 1, 0)),
            psb_period=one((0, 0, 0, 1, 5)) * psb_cyc,
        ),
        time={
            "cpi": one((1, 1, 3)),
            "tsc_start": one((1_000_000_000, 0, 12_345, (1 << 56) - 5_000)),
            "tsc_adjust": one((0, 0, 77, -1_000_000)),
        }
        | one(CRYSTALS)
        | ({"core_ratio": ratio} if ratio else {}),
        parameters={
            "tnt_form": form,
            "tnt_flush": one((0, 0, 1, 5 if form == "short" else 30)),
            "ip_compression": one(("shortest", "none", "sext48_only", "bdw")),
            "ret_compression_depth": one((64, 64, 0, 1, 5)),
            "modeexec_suppress": one((True, False)),
            "tracestop_pgd_ip": one(("target", "suppressed")),
            "psb_on_enable_order": one(("before_pge", "after_pge")),
            "psb_delay": one((0, 0, 20, 300)),
            "psb_plus_order": tuple(pick.sample(PSB_PLUS_ORDER, 6)),
            "compress_after_psb": one((True, False)),
            "psb_counts_itself": one((True, False)),
            "cyc_counter_bits": one((14, 12, 19)),
        },
        psb_cyc=psb_cyc,
        filters=tuple(pick.choices(("filter", "filter", "stop"), k=one((0, 0, 0, 1, 2, 4)))),
        room=one((None, None, None, None, None, pick.randrange(1, 4097))),
        seed=seed,
        length=length,
    )


cases = partial(st.builds, make_case, st.integers(0, (1 << 64) - 1), st.integers(0, 150))


@examples(2000)
@given(cases())
@example(Case(length=600))
@example(make_case(1240731, 8))
@example(Case(seed=1, length=600, options=PtOptions(cyc=1, psb_period=0)))
def test_bulk_unit_writes_the_bytes_of_the_reference_unit(case: Case) -> None:
    assert case.bulk_packets() == case.reference_packets()


@examples(200)
@given(cases(), st.sampled_from((128, 4096)))
def test_circular_region_keeps_the_last_bytes(case: Case, size: int) -> None:
    case.room, case.filters = None, ()
    unit = case.unit(circular=size)
    for step in case.steps():
        if isinstance(step, bytes):
            unit.feed(step)
        elif isinstance(step, Overflow):
            unit.overflow(step.clock, step.ip)
    whole = case.reference_packets()
    assert unit.written == len(whole)
    assert unit.take_output() == whole[-size:]


@examples(300)
@given(cases(), st.data())
def test_damaged_state_is_rejected_or_runs(case: Case, data: st.DataObject) -> None:
    unit, after = case.unit(), case.unit()
    steps = [step for step in case.steps() if isinstance(step, bytes)]
    for step in steps:
        unit.feed(step)
    state = bytearray(unit.save_state())
    for _ in range(data.draw(st.integers(1, 3))):
        state[data.draw(st.integers(0, len(state) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    before = after.save_state()
    try:
        after.restore_state(bytes(state))
    except ValueError:
        assert after.save_state() == before
        return
    for step in steps:
        try:
            after.feed(step)
        except ValueError as error:
            assert "clock" in str(error)  # noqa: PT017
            return


def test_state_of_another_size_is_rejected() -> None:
    unit = BulkUnit()
    state = unit.save_state()
    for bad in (b"", state[:-1], state + b"\0", b"x" + state[1:]):
        with pytest.raises(ValueError, match="no saved state"):
            unit.restore_state(bad)
