"""What a decoder must be told that is not in the packets.

The address filters of a recording, as the ranges that its processor was given.

The clocks of a recording, in words: what its times are, and how they belong together.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from rtit.errors import PerfDataError, UsageError
from rtit.image.mappings import Mapping
from rtit.perfdata import PerfData
from rtit.perfdata.attr import AttrFlag, config_value
from rtit.perfdata.filters import FILTER_EN, parse_address_filters

if TYPE_CHECKING:
    from rtit.perfdata import PerfData, TimeConversion


MAX_RANGES = 4

NO_SCALING = (0, 1 << 48)
"""Guests see the TSC as it is."""

Cpu = tuple[int, int, int]
"""DisplayFamily, DisplayModel and stepping of an Intel processor."""


@dataclass(frozen=True, slots=True)
class Start:
    """The state of tracing at the first byte of a stream, which begins a packet outside a block.

    `ip` is the next instruction, None: tracing is off; `bits` the mode of the code (16, 32, 64);
    `last_ip` what IPs are compressed against (section 33.4.2.2).
    """

    ip: int | None = None
    bits: int = 64
    last_ip: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a stream was made, as plain values; 0 where it is not known, then MTCs or CYCs give no
    time.

    `mtc_freq`: IA32_RTIT_CTL.MTCFreq, 0..15; `tsc_ctc`: CPUID.15H (EBX, EAX), TSC ticks per crystal
    tick as a fraction of 32-bit numbers; `max_nonturbo_ratio`: MSR_PLATFORM_INFO[15:8], 0..255;
    `start_time`: any TSC value near the beginning, which completes the 56 bits of TSC packets;
    `no_tnt`, `no_retcomp`: recorded with DisTNT, DisRETC; `cpu`: DisplayFamily, DisplayModel and
    stepping of the Intel processor, None if not known (errata go by it); `guest_tsc`: offset and
    multiplier by which guests see the TSC, the multiplier in units of 2**-48; `ranges`: the
    IP filter ranges, each as first and last address, at most 4, empty if there was no filter or
    they are not known; `start`: how things are at the first byte, None for a stream that is read
    from its first PSB on; `walk`: decode each packet by itself, which takes longer and gives the
    same; `threads`: how many threads may decode it, 1 to 255: each takes segments between PSBs, and
    the results are those of one. 0: one for results in order, for others as many as the
    machine runs at once, 8 at most. One alone decodes what threads share by turns, times with
    their bounds, and listings as text. `places`: how many runs and how many edges have counts of
    their own where they are added up, 0: by the size of the stream.
    """

    mtc_freq: int = 0
    tsc_ctc: tuple[int, int] = (0, 0)
    max_nonturbo_ratio: int = 0
    start_time: int = 0
    no_tnt: bool = False
    no_retcomp: bool = False
    cpu: Cpu | None = None
    guest_tsc: tuple[int, int] = NO_SCALING
    ranges: tuple[tuple[int, int], ...] = ()
    start: Start | None = None
    walk: bool = False
    threads: int = 0
    places: int = 0


def of_perf(
    data: PerfData,
    start_time: int,
    cpu: Cpu | None = None,
    ranges: tuple[tuple[int, int], ...] = (),
    threads: int = 0,
    places: int = 0,
) -> Settings:
    """The settings of a perf.data file; `cpu` instead of the processor that it names, `ranges` as
    the filters gave them; `threads` may decode, `places` have counts. Raises PerfDataError if
    nothing in it describes the trace, or if a number has more bits than its register.
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
        cpu=cpu or processor(data.cpuid),
        ranges=ranges,
        threads=threads,
        places=places,
    )


def processor(cpuid: str | None) -> Cpu | None:
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


def cpu_named(text: str) -> Cpu:
    """`F/M/S` or `F/M`, decimal or with 0x, as a processor. Raises UsageError."""
    try:
        numbers = [int(word, 0) for word in text.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise UsageError(f"cpu {text!r}: it is FAMILY/MODEL/STEPPING, as 6/94/3")
    family, model, stepping = (*numbers, 0)[:3]
    return family, model, stepping


def checked(settings: Settings) -> Settings:
    """The same; raises UsageError for a number that its register or a stream cannot have."""
    ebx, eax = _numbers("cpuid_15", settings.tsc_ctc, 2)
    offset, multiplier = _numbers("guest_tsc", settings.guest_tsc, 2)
    family, model, stepping = _numbers("cpu", settings.cpu or (0, 0, 0), 3)
    ranges = [_numbers("a filter range", each, 2) for each in settings.ranges]
    start = settings.start or Start()
    rules = [
        ("mtc_freq", settings.mtc_freq, 4),
        ("cpuid_15 EBX", ebx, 32),
        ("cpuid_15 EAX", eax, 32),
        ("nom_freq", settings.max_nonturbo_ratio, 8),
        ("start_time", settings.start_time, 64),
        ("guest_tsc offset", offset, 64),
        ("guest_tsc multiplier", multiplier, 64),
        ("cpu family", family, 16),
        ("cpu model", model, 16),
        ("cpu stepping", stepping, 8),
        ("threads", settings.threads, 8),
        ("places", settings.places, 48),
        ("start ip", start.ip or 0, 64),
        ("start last_ip", start.last_ip, 64),
        *(("ranges", address, 64) for each in ranges for address in each),
    ]
    for name, value, bits in rules:
        if not 0 <= value < 1 << bits:
            raise UsageError(f"{name} is {value}: it has {bits} bits")
    if start.bits not in (16, 32, 64):
        raise UsageError(f"start bits is {start.bits}: code has 16, 32 or 64")
    if len(settings.ranges) > MAX_RANGES:
        raise UsageError(f"{len(settings.ranges)} filter ranges: there are {MAX_RANGES} at most")
    return settings


def few(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Filter ranges as a user gives them, one more than there can be at most."""
    return tuple(islice(ranges, MAX_RANGES + 1))


def _numbers(name: str, given: Iterable[int], count: int) -> tuple[int, ...]:
    try:
        numbers = tuple(operator.index(number) for number in islice(given, count + 1))
    except TypeError:
        numbers = ()
    if len(numbers) != count:
        raise UsageError(f"{name} is {given!r}: it is {count} whole numbers")
    return numbers


def traced_ranges(text: str | None, mappings: Iterable[Mapping]) -> tuple[tuple[int, int], ...]:
    """First and last address of all that a process with these `mappings` may have had traced
    (section 33.2.5.2): wherever the files of the filters in `text` have ever been mapped.

    Empty if there was no filter, or if it is not known what it let through: the text is none, a
    file was never mapped under its name, or there are more places than a processor has ranges.
    """
    try:
        filters = parse_address_filters(text) if text else []
    except PerfDataError:
        return ()
    mapped = list(mappings)
    found: set[tuple[int, int]] = set()
    for each in filters:
        if each.addr_cfg != FILTER_EN:
            continue
        places = {
            each.addresses(mapping.start, mapping.offset, mapping.end - mapping.start, mapping.path)
            for mapping in mapped
        }
        if not each.path:
            places = {(each.offset, each.offset + each.size - 1)}
        places.discard(None)
        if not places:
            return ()
        found.update(place for place in places if place is not None)
    ranges = _joined(found)
    return tuple(ranges) if len(ranges) <= MAX_RANGES else ()


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that meet are one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(places):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


_NAMES = {
    0: "CLOCK_REALTIME",
    1: "CLOCK_MONOTONIC",
    4: "CLOCK_MONOTONIC_RAW",
    7: "CLOCK_BOOTTIME",
    11: "CLOCK_TAI",
}
"""include/uapi/linux/time.h; those that perf takes."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 10**9


def clocks_in_words(data: PerfData) -> list[str]:
    """Each clock of a recording, and how to get from one to another. Raises PerfDataError."""
    return list(_clocks(data))


def _clocks(data: PerfData) -> Iterator[str]:
    clock = data.time_conversion
    if clock is not None:
        yield f"perf's, in ns = {_formula(clock)}"
    named = {each.attr.clockid for each in data.events if each.attr.flags & AttrFlag.USE_CLOCKID}
    for number in sorted(named):
        yield f"records have times of {_name(number)}: not perf's, so that packets have others"
    wall = data.wall_clock
    if wall is not None:
        yield f"{_name(wall.clockid)} {seconds(wall.clock)} was {_date(wall.wall)}"


def _formula(clock: TimeConversion) -> str:
    tsc = "TSC"
    if clock.mask != (1 << 64) - 1:
        tsc = f"({clock.cycles:#x} + (TSC - {clock.cycles:#x} & {clock.mask:#x}))"
    return f"{clock.zero:#x} + ({tsc} * {clock.mult} >> {clock.shift})"


def _name(number: int) -> str:
    return _NAMES.get(number, f"clock {number}")


def seconds(nanoseconds: int) -> str:
    """As perf prints it with --ns."""
    return f"{nanoseconds // _SECOND}.{nanoseconds % _SECOND:09}"


def _date(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, _SECOND)
    try:
        when = _EPOCH + timedelta(seconds=whole)
    except OverflowError:
        return f"{nanoseconds} ns after 1970"
    return f"{when:%Y-%m-%d %H:%M:%S}.{rest:09} UTC"
