"""The clocks of a recording: cycles per instruction (CPI), core clock and TSC.

The TSC always runs at 1 GHz, so one tick is one nanosecond, the unit of time in perf.data. The core
clock is a multiple of the bus clock, because CBR packets can express no other.
"""

from __future__ import annotations

import re

from rtit.errors import UsageError
from rtit.unit.time_model import TimeModel

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
        raise UsageError(f"a frequency is a number and kHz, MHz or GHz, not {text!r}")
    whole, _, fraction = str(match[1]).partition(".")
    scale: int = 10 ** len(fraction)
    hertz, remainder = divmod(int(whole + fraction) * _UNITS[match[2].upper()], scale)
    if remainder or hertz % BUS_HZ or not 1 <= hertz // BUS_HZ <= 255:
        raise UsageError(
            f"the core clock is a multiple of 100 MHz from 100 MHz to 25.5 GHz, not {text!r}"
        )
    return hertz


def parse_cpi(text: str) -> int:
    """Return the core cycles per instruction, a whole number from 1 to 1000. Raises UsageError."""
    if not re.fullmatch("[0-9]{1,4}", text.strip()) or not 1 <= int(text) <= _MAX_CPI:
        raise UsageError(f"--cpi is a whole number from 1 to {_MAX_CPI}, not {text!r}")
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
    length = f"{nanoseconds:.4g} ns a retired instruction"
    if model == TimeModel():
        return f"modelled: {length}"
    core, tsc = (f"{hz / 10**9:g} GHz" for hz in (model.core_ratio * model.bus_hz, model.tsc_hz))
    return f"modelled: {length} (CPI {model.cpi}, core clock {core}, TSC {tsc})"
