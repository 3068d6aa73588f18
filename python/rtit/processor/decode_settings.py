"""What a decoder has to know of a trace besides its packets (sections 33.8.3.1 and 33.8.3.3)."""

from __future__ import annotations

from typing import TypedDict

from rtit.processor.core import Cpu
from rtit.unit.arch_state import MASK64


class DecodeSettings(TypedDict):
    """The keyword arguments of `rtit.decode` that a processor determines."""

    cpu: tuple[int, int, int]
    mtc_freq: int
    nom_freq: int
    cpuid_15: tuple[int, int]
    start_time: int
    guest_tsc: tuple[int, int]
    ranges: tuple[tuple[int, int], ...]
    no_tnt: bool
    no_retcomp: bool


def decode_settings(cpu: Cpu) -> DecodeSettings:
    """The settings with which `rtit.decode(packets, image, **settings)` decodes the trace that
    TraceEn started last, also after its end; `guest_tsc` is that of the guest that runs now.
    """
    unit, configuration, controls = cpu.unit, cpu.unit.configuration, cpu.arch.controls
    profile, time = unit.profile, unit.time
    return DecodeSettings(
        cpu=(profile.family, profile.model, profile.stepping),
        mtc_freq=configuration.mtc_shift,
        nom_freq=time.max_non_turbo_ratio,
        cpuid_15=(profile.tsc_denominator, profile.tsc_numerator),
        start_time=time.tsc_at(time.since),
        guest_tsc=(controls.tsc_offset & MASK64, controls.tsc_multiplier),
        ranges=configuration.ranges.filter,
        no_tnt=configuration.dis_tnt,
        no_retcomp=configuration.dis_retc,
    )
