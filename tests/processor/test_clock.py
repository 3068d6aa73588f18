"""The clock of a processor, its CPUID leaf, and decoding with it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

import rtit
from rtit.processor import Processor
from rtit.registers import BROADWELL, CTL, FULL, PROFILES, SKYLAKE, Msr, Profile
from rtit.trace import Branches
from rtit.unit.time_model import TimeModel

CODE, BUFFER, SIZE = 0x40_0000, 0x10_0000, 1 << 20
TIMED = [profile for profile in PROFILES.values() if profile.mtc]
NAMES = [profile.name for profile in TIMED]


@pytest.mark.parametrize("profile", TIMED, ids=NAMES)
@pytest.mark.spec("TIME-001")
def test_clock_of_a_profile_has_the_ratio_of_its_cpuid_15h(profile: Profile) -> None:
    cpu = Processor(profile=profile)
    leaf, time = cpu.cpuid(0x15), cpu.unit.time
    assert (leaf.ebx, leaf.eax) == (time.tsc_numerator, time.tsc_denominator)
    assert leaf == profile.cpuid(0x15)
    assert leaf.ecx in (time.crystal_hz, 0)


@pytest.mark.parametrize(
    ("profile", "tsc_hz", "p1"),
    [
        ("skylake", 3_192_000_000, 32),
        ("goldmont-plus", 1_094_400_000, 11),
        ("icelake", 1_497_600_000, 15),
        ("alderlake", 2_688_000_000, 27),
        ("full", 1_000_000_000, 10),
    ],
)
@pytest.mark.spec("TIME-015")
def test_clock_of_a_profile_runs_at_p1(profile: str, tsc_hz: int, p1: int) -> None:
    time = Processor(profile=PROFILES[profile]).unit.time
    assert (time.tsc_hz, time.max_non_turbo_ratio, time.core_ratio) == (tsc_hz, p1, p1)
    second = time.nanoseconds(tsc_hz) - time.nanoseconds(0)
    assert second == pytest.approx(1_000_000_000, rel=1e-8)


def test_cpuid_15h_reports_a_clock_that_is_given() -> None:
    time = TimeModel(
        crystal_hz=25_000_000, tsc_numerator=168, tsc_denominator=2, bus_hz=210_000_000
    )
    assert Processor(profile=SKYLAKE, time=time).cpuid(0x15) == (2, 168, 25_000_000, 0)
    assert Processor(profile=SKYLAKE, time=TimeModel()).cpuid(0x15) == (2, 80, 25_000_000, 0)
    assert Processor(profile=BROADWELL, time=time).cpuid(0x15) == (0, 0, 0, 0)


def trace_jumps(cpu: Processor, ctl: dict[str, int]) -> tuple[rtit.Trace, list[int]]:
    """Return a trace of indirect jumps, and the TSC of each."""
    random, clock, ip = Random(1), 0, CODE
    cpu.set_msr(Msr.OUTPUT_BASE, BUFFER)
    if cpu.unit.profile.single_range:
        cpu.set_msr(Msr.OUTPUT_MASK_PTRS, SIZE - 1)
    else:
        cpu.unit.output.memory.write_u64(0x1000, BUFFER | 8 << 6)
        cpu.unit.output.memory.write_u64(0x1008, 0x1000 | 1)
        cpu.set_msr(Msr.OUTPUT_BASE, 0x1000)
        ctl = {"ToPA": 1, **ctl}
    control = CTL.encode(TraceEn=1, BranchEn=1, User=1, TSCEn=1, MTCEn=1, **ctl)
    cpu.set_msr(Msr.CTL, control, next_ip=CODE)
    truth = []
    for _ in range(300):
        clock += random.choice((1, 7, 30, 4_000))
        cpu.at(clock)
        truth.append(cpu.unit.time.tsc(clock))
        target = CODE + 2 * random.randrange(0x800)
        cpu.indirect_jump(ip, target)
        ip = target
    cpu.set_msr(Msr.CTL, 0, ip=ip)
    written = cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32
    data = cpu.unit.output.memory.read(BUFFER, written)
    image = rtit.Image().add(CODE, b"\xff\xe0" * 0x800)
    return rtit.decode(data, image, **cpu.decode_settings()), truth


@pytest.mark.parametrize("profile", TIMED, ids=NAMES)
@pytest.mark.parametrize("start", [1_000_000_000, (1 << 57) + 12_345])
@pytest.mark.spec("TIME-001", "TIME-009")
def test_times_decoded_from_cycles_are_those_of_the_clock(profile: Profile, start: int) -> None:
    time = replace(TimeModel.from_profile(profile), tsc_start=start)
    trace, truth = trace_jumps(Processor(profile=profile, time=time), {"CYCEn": 1, "MTCFreq": 3})
    # a block begins at the time of the TIP that leads to it, the first one at TIP.PGE
    times = trace.streams[0].blocks(timing=True).columns()["time"].tolist()
    assert times == [time.tsc(0), *truth[:-1]]
    assert trace.streams[0].counts().frequency == 1.0


@pytest.mark.parametrize("profile", TIMED, ids=NAMES)
@pytest.mark.spec("TIME-001", "TIME-006")
def test_times_decoded_from_mtcs_have_the_clock_within_their_bounds(profile: Profile) -> None:
    trace, truth = trace_jumps(Processor(profile=profile), {"MTCFreq": 3})
    columns = Branches.concatenate(
        iter(trace.streams[0].branches(timing=True)), ("earliest", "latest")
    )
    bounds = zip(columns["earliest"].tolist(), truth, columns["latest"].tolist(), strict=True)
    assert all(earliest <= time <= latest for earliest, time, latest in bounds)


def test_decode_settings_outlive_the_end_of_the_trace() -> None:
    cpu = Processor(profile=FULL)
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFF)
    cpu.set_msr(Msr.ADDR0_A, 0x1000)
    cpu.set_msr(Msr.ADDR0_B, 0x1FFF)
    fields = {"MTCEn": 1, "MTCFreq": 6, "DisTNT": 1, "DisRETC": 1, "ADDR0_CFG": 1}
    cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, BranchEn=1, User=1, **fields), next_ip=0x1000)
    cpu.set_msr(Msr.CTL, 0)
    assert cpu.decode_settings() == {
        "cpu": (6, 0xAF, 3),
        "mtc_freq": 6,
        "nom_freq": 10,
        "cpuid_15": (2, 80),
        "start_time": 1_000_000_000,
        "guest_tsc": (0, 1 << 48),
        "ranges": ((0x1000, 0x1FFF),),
        "no_tnt": True,
        "no_retcomp": True,
    }
