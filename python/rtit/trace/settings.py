"""What a decoder must be told that is not in the packets."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.errors import PerfDataError
from rtit.perfdata import PerfData
from rtit.perfdata.attr import config_value


@dataclass(frozen=True, slots=True)
class Settings:
    """How a stream was made, as plain values; 0 where it is not known, then MTCs or CYCs give no
    time.

    `mtc_freq`: IA32_RTIT_CTL.MTCFreq, 0..15; `tsc_ctc`: CPUID.15H (EBX, EAX), TSC ticks per crystal
    tick as a fraction of 32-bit numbers; `max_nonturbo_ratio`: MSR_PLATFORM_INFO[15:8], 0..255;
    `start_time`: any TSC value near the beginning, which completes the 56 bits of TSC packets;
    `no_tnt`, `no_retcomp`: recorded with DisTNT, DisRETC; `cpu`: DisplayFamily, DisplayModel and
    stepping of the Intel processor, None if not known (errata go by it); `ranges`: the IP filter
    ranges, each as first and last address, at most 4, empty if there was no filter or they are not
    known; `walk`: decode each packet by itself, which takes longer and gives the same.
    """

    mtc_freq: int = 0
    tsc_ctc: tuple[int, int] = (0, 0)
    max_nonturbo_ratio: int = 0
    start_time: int = 0
    no_tnt: bool = False
    no_retcomp: bool = False
    cpu: tuple[int, int, int] | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    walk: bool = False


def of_perf(data: PerfData, start_time: int) -> Settings:
    """The settings of a perf.data file. Raises PerfDataError if nothing in it describes the trace,
    or if a number has more bits than its register.
    """
    info, event = data.info, data.intel_pt
    if info is None or event is None:
        raise PerfDataError("no Intel PT event describes the trace", source=data.path)
    config = event.attr.config

    def fits(name: str, value: int, bits: int) -> int:
        if value >> bits:
            message = f"{name} of AUXTRACE_INFO has more than {bits} bits"
            raise PerfDataError(message, source=data.path, value=value)
        return value

    return Settings(
        mtc_freq=fits("mtc_period", info.mtc_period(config), 4),
        tsc_ctc=(fits("tsc_ctc_n", info.tsc_ctc_n, 32), fits("tsc_ctc_d", info.tsc_ctc_d, 32)),
        max_nonturbo_ratio=fits("max_nonturbo_ratio", info.max_nonturbo_ratio, 8),
        start_time=start_time,
        no_tnt=bool(config_value(config, "notnt")),
        no_retcomp=bool(config_value(config, "noretcomp")),
        cpu=processor(data.cpuid),
    )


def processor(cpuid: str | None) -> tuple[int, int, int] | None:
    """Family, model and stepping of an Intel processor as perf writes them (GenuineIntel,6,94,3,
    perhaps with more behind); None for anything else.
    """
    vendor, *numbers = (cpuid or "").split(",")
    if vendor != "GenuineIntel" or len(numbers) < 3:
        return None
    if not all(number.isdecimal() and int(number) < 1 << 8 for number in numbers[:3]):
        return None
    family, model, stepping = map(int, numbers[:3])
    return family, model, stepping
