"""Decoder settings that the packets do not contain, from perf.data or from a user.

`Settings` are the decoder's parameters: frequencies, errata, filter ranges. `settings_from_perf`
reads them from a recording, `check_settings` validates numbers from a user. `traced_ranges`
computes the ranges of IP filters. `describe_clocks` prints the clocks of a recording.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from rtit.errors import PerfDataError, UsageError
from rtit.image.mappings import Mapping
from rtit.perfdata.attr import AttrFlag, config_value
from rtit.perfdata.filters import FILTER_EN, parse_address_filters

if TYPE_CHECKING:
    from rtit.perfdata import PerfData, TimeConversion


MAX_RANGES = 4

NO_SCALING = (0, 1 << 48)
"""The `guest_tsc` of a guest that sees the TSC of the host: offset 0, multiplier 1."""

Cpu = tuple[int, int, int]
"""DisplayFamily, DisplayModel and stepping of an Intel processor."""


@dataclass(frozen=True, slots=True)
class Start:
    """The state at the first byte of a stream, where a packet starts, outside of a block.

    `ip` is the next instruction, None if tracing is off; `bits` is the mode of the code (16, 32 or
    64); `last_ip` is the address that IPs are compressed against (section 33.4.2.2).
    """

    ip: int | None = None
    bits: int = 64
    last_ip: int = 0


_NATIVE = (
    *("mtc_freq", "tsc_ctc", "max_nonturbo_ratio", "start_time", "guest_tsc"),
    *("no_tnt", "no_retcomp", "cpu", "ranges", "walk"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a stream was recorded, and how to decode it. 0 or None is unknown, unless stated."""

    mtc_freq: int = 0
    """IA32_RTIT_CTL.MTCFreq, 0 to 15."""
    tsc_ctc: tuple[int, int] = (0, 0)
    """CPUID.15H (EBX, EAX): TSC ticks for each crystal tick, a fraction of 32-bit numbers. If it is
    unknown, MTCs and CYCs give no time.
    """
    max_nonturbo_ratio: int = 0
    """MSR_PLATFORM_INFO[15:8], 0 to 255."""
    start_time: int = 0
    """Any TSC value near the beginning. It completes the 56 bits of TSC packets."""
    no_tnt: bool = False
    """Recorded with DisTNT."""
    no_retcomp: bool = False
    """Recorded with DisRETC."""
    cpu: Cpu | None = None
    """The Intel processor, which selects the errata to work around."""
    guest_tsc: tuple[int, int] = NO_SCALING
    """Offset and multiplier (units of 2**-48) by which guests see the TSC."""
    ranges: tuple[tuple[int, int], ...] = ()
    """IP filter ranges, first and last address each, at most 4. Empty: no filter, or unknown."""
    start: Start | None = None
    """The state at the first byte; None: decoding starts at the first PSB."""
    walk: bool = False
    """Decode each packet with the interpreter, which is slower and gives the same results."""
    jobs: int = 0
    """Decoder threads, 1 to 255; each decodes segments between PSBs. 0: one for ordered results,
    otherwise one for each CPU, at most 8. One thread alone decodes streams of several program
    threads, times with bounds, and listings.
    """
    max_counters: int = 0
    """How many distinct runs, and how many distinct edges, are counted separately. 0: depends on
    the size of the stream.
    """

    def native(self) -> dict[str, Any]:
        """The keyword arguments of native decoders, without `jobs` and `max_counters`."""
        start = self.start
        state = (start.ip, start.bits, start.last_ip) if start is not None else None
        return {name: getattr(self, name) for name in _NATIVE} | {"start": state}


def settings_from_perf(
    data: PerfData,
    start_time: int,
    cpu: Cpu | None = None,
    ranges: tuple[tuple[int, int], ...] = (),
    jobs: int = 0,
    max_counters: int = 0,
) -> Settings:
    """The settings of a perf.data file. `cpu` replaces the processor that the file names; `ranges`
    are the ranges of its filters.

    Raises PerfDataError if the file does not describe the trace, or if a number exceeds its field.
    """
    info, event = data.info, data.intel_pt
    if info is None or event is None:
        raise PerfDataError("no Intel PT event describes the trace", source=data.path)
    config = event.attr.config

    def check_bit_width(name: str, value: int, bits: int) -> int:
        if value >> bits:
            message = f"{name} of AUXTRACE_INFO has more than {bits} bits"
            raise PerfDataError(message, source=data.path, value=value)
        return value

    return Settings(
        mtc_freq=check_bit_width("mtc_period", info.mtc_period(config), 4),
        tsc_ctc=(
            check_bit_width("tsc_ctc_n", info.tsc_ctc_n, 32),
            check_bit_width("tsc_ctc_d", info.tsc_ctc_d, 32),
        ),
        max_nonturbo_ratio=check_bit_width("max_nonturbo_ratio", info.max_nonturbo_ratio, 8),
        start_time=start_time,
        no_tnt=bool(config_value(config, "notnt")),
        no_retcomp=bool(config_value(config, "noretcomp")),
        cpu=cpu or parse_perf_cpuid(data.cpuid),
        ranges=ranges,
        jobs=jobs,
        max_counters=max_counters,
    )


def parse_perf_cpuid(cpuid: str | None) -> Cpu | None:
    """Parse perf's text for an Intel processor, GenuineIntel,FAMILY,MODEL,STEPPING, possibly with
    more fields; None for other processors.
    """
    vendor, *numbers = (cpuid or "").split(",")
    if vendor != "GenuineIntel" or len(numbers) < 3:
        return None
    if not all(number.isdecimal() and int(number) < 1 << 8 for number in numbers[:3]):
        return None
    family, model, stepping = map(int, numbers[:3])
    return family, model, stepping


def parse_cpu(text: str) -> Cpu:
    """Parse `FAMILY/MODEL/STEPPING` or `FAMILY/MODEL`, decimal or with 0x. Raises UsageError."""
    try:
        numbers = [int(word, 0) for word in text.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise UsageError(f"cpu {text!r}: expected FAMILY/MODEL/STEPPING, such as 6/94/3")
    family, model, stepping = (*numbers, 0)[:3]
    return family, model, stepping


def check_settings(settings: Settings) -> Settings:
    """Return the same settings. Raises UsageError for a number that does not fit its field."""
    ebx, eax = _check_whole_numbers("cpuid_15", settings.tsc_ctc, 2)
    offset, multiplier = _check_whole_numbers("guest_tsc", settings.guest_tsc, 2)
    family, model, stepping = _check_whole_numbers("cpu", settings.cpu or (0, 0, 0), 3)
    ranges = [_check_whole_numbers("a filter range", each, 2) for each in settings.ranges]
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
        ("jobs", settings.jobs, 8),
        ("max_counters", settings.max_counters, 48),
        ("start ip", start.ip or 0, 64),
        ("start last_ip", start.last_ip, 64),
        *(("ranges", address, 64) for each in ranges for address in each),
    ]
    for name, value, bits in rules:
        if not 0 <= value < 1 << bits:
            raise UsageError(f"{name} is {value}: it has {bits} bits")
    if start.bits not in (16, 32, 64):
        raise UsageError(f"start bits is {start.bits}: expected 16, 32 or 64")
    if len(settings.ranges) > MAX_RANGES:
        raise UsageError(
            f"{len(settings.ranges)} filter ranges: at most {MAX_RANGES} are supported"
        )
    return settings


def limit_filter_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The filter ranges of a user: no more than suffice to detect that there are too many."""
    return tuple(islice(ranges, MAX_RANGES + 1))


def _check_whole_numbers(name: str, given: Iterable[int], count: int) -> tuple[int, ...]:
    try:
        numbers = tuple(operator.index(number) for number in islice(given, count + 1))
    except TypeError:
        numbers = ()
    if len(numbers) != count:
        raise UsageError(f"{name} is {given!r}: it is {count} whole numbers")
    return numbers


def traced_ranges(text: str | None, mappings: Iterable[Mapping]) -> tuple[tuple[int, int], ...]:
    """First and last address of each range that a process may have had traced (section 33.2.5.2):
    all addresses at which the files of the filters in `text` were mapped at any time.

    Empty without a filter, or if the ranges are unknown: `text` is malformed, a file was never
    mapped under its name, or there are more ranges than a processor has.
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
        addresses = {
            each.addresses(mapping.start, mapping.offset, mapping.end - mapping.start, mapping.path)
            for mapping in mapped
        }
        if not each.path:
            addresses = {(each.offset, each.offset + each.size - 1)}
        addresses.discard(None)
        if not addresses:
            return ()
        found.update(pair for pair in addresses if pair is not None)
    ranges = _merge_ranges(found)
    return tuple(ranges) if len(ranges) <= MAX_RANGES else ()


def _merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges sorted, with overlapping and adjacent ones merged."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged


_CLOCK_NAMES = {
    0: "CLOCK_REALTIME",
    1: "CLOCK_MONOTONIC",
    4: "CLOCK_MONOTONIC_RAW",
    7: "CLOCK_BOOTTIME",
    11: "CLOCK_TAI",
}
"""From include/uapi/linux/time.h; the clocks that perf supports."""
_SECOND = 10**9


def describe_clocks(data: PerfData) -> Iterator[str]:
    """One line for each clock of a recording, with its conversion. Raises PerfDataError."""
    clock = data.time_conversion
    if clock is not None:
        yield f"perf's, in ns = {_format_clock_formula(clock)}"
    named = {each.attr.clockid for each in data.events if each.attr.flags & AttrFlag.USE_CLOCKID}
    for number in sorted(named):
        name = _clock_name(number)
        yield f"records have times of {name}: not perf's, so that packets have others"
    wall = data.wall_clock
    if wall is not None:
        date = _format_utc_date(wall.wall)
        yield f"{_clock_name(wall.clockid)} {format_seconds(wall.clock)} was {date}"


def _format_clock_formula(clock: TimeConversion) -> str:
    tsc = "TSC"
    if clock.mask != (1 << 64) - 1:
        tsc = f"({clock.cycles:#x} + (TSC - {clock.cycles:#x} & {clock.mask:#x}))"
    return f"{clock.zero:#x} + ({tsc} * {clock.mult} >> {clock.shift})"


def _clock_name(number: int) -> str:
    return _CLOCK_NAMES.get(number, f"clock {number}")


def format_seconds(nanoseconds: int) -> str:
    """The format of perf's --ns."""
    return f"{nanoseconds // _SECOND}.{nanoseconds % _SECOND:09}"


def _format_utc_date(nanoseconds: int) -> str:
    from datetime import UTC, datetime, timedelta  # only `rtit info` needs it

    whole, rest = divmod(nanoseconds, _SECOND)
    try:
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=whole)
    except OverflowError:
        return f"{nanoseconds} ns after 1970"
    return f"{when:%Y-%m-%d %H:%M:%S}.{rest:09} UTC"
