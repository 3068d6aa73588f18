"""Event options in perf's syntax (`intel_pt/cyc=1,mtc_period=3,noretcomp/u`), and the clocks.

Terms are bit-fields of perf_event_attr.config, which has the layout of IA32_RTIT_CTL (section
33.2.8.2), except for bit 0, perf's pass-through flag `pt`: without it, `branch` has no effect.

The clocks are cycles per instruction (CPI), core clock and TSC. The TSC always runs at 1 GHz, so
one tick is one nanosecond, the unit of time in perf.data. The core clock is a multiple of the bus
clock, because CBR packets can express no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from rtit.errors import UsageError
from rtit.unit.time_model import TimeModel

if TYPE_CHECKING:
    from rtit.registers import Profile


PMU = "intel_pt"

# term -> (lowest bit, width): the PMU's format directory
TERMS: dict[str, tuple[int, int]] = {
    "pt": (0, 1),
    "cyc": (1, 1),
    "pwr_evt": (4, 1),
    "fup_on_ptw": (5, 1),
    "mtc": (9, 1),
    "tsc": (10, 1),
    "noretcomp": (11, 1),
    "ptw": (12, 1),
    "branch": (13, 1),
    "mtc_period": (14, 4),
    "cyc_thresh": (19, 4),
    "psb_period": (24, 4),
    "event": (31, 1),
    "notnt": (55, 1),
}
_PERIODS = frozenset({"mtc_period", "psb_period", "cyc_thresh"})

# term -> the Profile capability that it needs when it is not 0
_REQUIRED_CAPABILITY = {
    "cyc": "psb_cyc",
    "cyc_thresh": "psb_cyc",
    "psb_period": "psb_cyc",
    "mtc": "mtc",
    "mtc_period": "mtc",
    "ptw": "ptwrite",
    "fup_on_ptw": "ptwrite",
    "pwr_evt": "power_events",
    "event": "event_trace",
    "notnt": "tnt_disable",
}
# period term -> the Profile bitmap of legal encodings
_BITMAPS = {
    "mtc_period": "mtc_periods",
    "cyc_thresh": "cyc_thresholds",
    "psb_period": "psb_periods",
}

_EVENT = re.compile(r"(?P<pmu>[^/:]*)(?:/(?P<terms>[^/]*)/)?(?::?(?P<modifiers>[A-Za-z]*))")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_BRANCH_EN = 1 << 13
_USER = 1 << 3


@dataclass(frozen=True, slots=True)
class PtOptions:
    """What the trace unit records. Defaults are those of `perf record -e intel_pt//u`.

    Fields are perf's terms. They are 0 or 1, except for the periods: `mtc_period` n means an MTC
    every 2**n crystal ticks, `psb_period` n a PSB every 2**(n+11) bytes, `cyc_thresh` n > 0 at
    least 2**(n-1) cycles between CYCs. `user` and `kernel` are the modifiers. Raises UsageError for
    values out of range.
    """

    pt: int = 1
    cyc: int = 0
    pwr_evt: int = 0
    fup_on_ptw: int = 0
    mtc: int = 1
    tsc: int = 1
    noretcomp: int = 0
    ptw: int = 0
    branch: int = 1
    mtc_period: int = 3
    cyc_thresh: int = 0
    psb_period: int = 3
    event: int = 0
    notnt: int = 0
    user: bool = True
    kernel: bool = False

    def __post_init__(self) -> None:
        for term, (_, width) in TERMS.items():
            value = getattr(self, term)
            if not 0 <= value < 1 << width:
                raise UsageError(f"{term} must be from 0 to {(1 << width) - 1}, not {value}")
        if not (self.user or self.kernel):
            raise UsageError("an event must trace user mode, the kernel or both")

    @classmethod
    def parse(
        cls, text: str, *, profile: Profile | None = None, user_only: bool = True
    ) -> PtOptions:
        """Return the options of `intel_pt/terms/modifiers`.

        A term without a value is 1; of two equal terms the last one counts. With `profile` the
        default periods are the nearest lower ones that this processor supports, and the result is
        checked against it. Raises UsageError for unknown terms, values out of range, and, if
        `user_only`, for events that include the kernel.
        """
        match = _EVENT.fullmatch(text.strip())
        if match is None or not (match["pmu"] or match["terms"]):
            raise UsageError(f"{text!r} is not an event: write {PMU}/terms/u, for example {PMU}//u")
        if match["pmu"] != PMU:
            hint = _suggest_term(match["pmu"], [PMU])
            raise UsageError(
                f"unknown event {match['pmu']!r}{hint}; the only event that rtit records is {PMU}"
            )
        options = _default_pt_options(profile)
        pairs = list(_split_terms(match["terms"] or ""))
        for name, value in pairs:
            if name == "config":
                options = cls.from_config(value)
        settings = {name: value for name, value in pairs if name != "config"}
        user, kernel = _parse_modifiers(match["modifiers"], text, user_only=user_only)
        options = replace(options, **settings, user=user, kernel=kernel)
        if profile is not None:
            options.check_supported_by(profile)
        return options

    @classmethod
    def from_config(cls, config: int, *, user: bool = True, kernel: bool = False) -> PtOptions:
        """Return the options of a value of attr.config. Raises UsageError for unknown bits."""
        known = sum(((1 << width) - 1) << low for low, width in TERMS.values())
        if config & ~known:
            raise UsageError(
                f"config {config:#x} has bits that belong to no term: {config & ~known:#x}"
            )
        values = {term: config >> low & (1 << width) - 1 for term, (low, width) in TERMS.items()}
        return cls(**values, user=user, kernel=kernel)

    @property
    def attr_config(self) -> int:
        """The value of attr.config."""
        return sum(int(getattr(self, term)) << low for term, (low, _) in TERMS.items())

    @property
    def rtit_ctl(self) -> int:
        """The value of IA32_RTIT_CTL for these options, with TraceEn=0.

        OS and User follow the modifiers. Without `pt`, BranchEn is 1 whatever `branch` is. The
        output scheme and the address ranges are not included.
        """
        ctl = self.attr_config & ~1
        if not self.pt:
            ctl |= _BRANCH_EN
        return ctl | (_USER if self.user else 0) | (1 << 2 if self.kernel else 0)

    def check_supported_by(self, profile: Profile) -> None:
        """Raise UsageError if the processor does not support these options."""
        for term, capability in _REQUIRED_CAPABILITY.items():
            value = getattr(self, term)
            if value and not getattr(profile, capability):
                raise UsageError(f"{term} is not supported by processor {profile.name}")
            if term in _BITMAPS and value not in (valid := _allowed_encodings(profile, term)):
                listed = ", ".join(map(str, valid))
                raise UsageError(
                    f"{term}={value} is not supported by processor {profile.name}; "
                    f"valid values: {listed}"
                )

    def __str__(self) -> str:
        """Return the shortest text for which `parse` returns these options."""
        default = PtOptions()
        terms = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in TERMS and value != getattr(default, each.name):
                plain = value == 1 and each.name not in _PERIODS
                terms.append(each.name if plain else f"{each.name}={value}")
        # Without a modifier perf records both.
        modifiers = "u" * self.user + "k" * self.kernel
        return f"{PMU}/{','.join(terms)}/{modifiers if modifiers != 'uk' else ''}"


def _default_pt_options(profile: Profile | None) -> PtOptions:
    if profile is None:
        return PtOptions()
    return PtOptions(
        mtc=int(profile.mtc),
        mtc_period=max(value for value in _allowed_encodings(profile, "mtc_period") if value <= 3),
        psb_period=max(value for value in _allowed_encodings(profile, "psb_period") if value <= 3),
    )


def _allowed_encodings(profile: Profile, term: str) -> list[int]:
    # Encoding 0 is always legal, whatever the bitmap has; without the capability no other is.
    bitmap = getattr(profile, _BITMAPS[term]) if getattr(profile, _REQUIRED_CAPABILITY[term]) else 0
    return [value for value in range(16) if value == 0 or bitmap >> value & 1]


def _split_terms(terms: str) -> Iterator[tuple[str, int]]:
    for item in terms.split(",") if terms.strip() else []:
        name, equals, text = (part.strip() for part in item.partition("="))
        if name != "config" and name not in TERMS:
            raise UsageError(
                f"unknown term {name!r}{_suggest_term(name, [*TERMS, 'config'])}; "
                f"valid terms: {', '.join(TERMS)}"
            )
        if equals and not _NUMBER.fullmatch(text):
            raise UsageError(f"{name} needs a number, not {text!r}")
        value = int(text, 16 if text[:2] in ("0x", "0X") else 10) if equals else 1
        yield name, value


def _parse_modifiers(text: str, event: str, *, user_only: bool) -> tuple[bool, bool]:
    unknown = [letter for letter in text if letter not in "uk"]
    if unknown:
        raise UsageError(f"unknown modifier {unknown[0]!r} in {event!r}; valid modifiers: u, k")
    user, kernel = "u" in text or not text, "k" in text or not text
    if user_only and kernel:
        raise UsageError(
            f"{event!r} includes the kernel, but this back end records only user mode: end the "
            "event with /u"
        )
    return user, kernel


def _suggest_term(word: str, valid: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


BUS_HZ = TimeModel().bus_hz
MAX_SCHEDULED_INSTRUCTIONS = 4096
"""Instructions of other threads after which a thread in the kernel counts as switched out."""

_FREQUENCY = re.compile(r"(?ai)([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kMG]?)(?:Hz)?")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_MAX_CPI = 1000


def parse_frequency(text: str) -> int:
    """Return the Hz of `3.2GHz`, `3.2G`, `800MHz` or `2500000000`.

    Raises UsageError for anything else, and for a frequency that CBR cannot express: it must be 1
    to 255 times the bus clock of 100 MHz.
    """
    match = _FREQUENCY.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"expected a frequency as a number with kHz, MHz or GHz, not {text!r}")
    whole, _, fraction = str(match[1]).partition(".")
    scale: int = 10 ** len(fraction)
    hertz, remainder = divmod(int(whole + fraction) * _UNITS[match[2].upper()], scale)
    if remainder or hertz % BUS_HZ or not 1 <= hertz // BUS_HZ <= 255:
        raise UsageError(
            f"the core clock must be a multiple of 100 MHz from 100 MHz to 25.5 GHz, not {text!r}"
        )
    return hertz


def parse_cpi(text: str) -> int:
    """Return the core cycles per instruction, a whole number from 1 to 1000. Raises UsageError."""
    if not re.fullmatch("[0-9]{1,4}", text.strip()) or not 1 <= int(text) <= _MAX_CPI:
        raise UsageError(f"--cpi must be a whole number from 1 to {_MAX_CPI}, not {text!r}")
    return int(text)


def make_time_model(*, cpi: int = 1, core_hz: int = 10 * BUS_HZ) -> TimeModel:
    """Return the clocks of a processor with `cpi` core cycles per instruction at `core_hz`."""
    return TimeModel(cpi=cpi, core_ratio=core_hz // BUS_HZ)


def instructions_per_tick(model: TimeModel) -> int:
    """Return a number of instructions after which the TSC has certainly advanced."""
    return -(-model.core_ratio // (model.cpi * model.max_non_turbo_ratio))


def describe_time_model(model: TimeModel) -> str:
    """Return the text by which a recording describes its time."""
    nanoseconds = model.cpi * 10**9 / (model.core_ratio * model.bus_hz)
    length = f"{nanoseconds:.4g} ns per retired instruction"
    if model == TimeModel():
        return f"modelled: {length}"
    core, tsc = (f"{hz / 10**9:g} GHz" for hz in (model.core_ratio * model.bus_hz, model.tsc_hz))
    return f"modelled: {length} (CPI {model.cpi}, core clock {core}, TSC {tsc})"
