"""The settings of a recording in words."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from rtit.perfdata.attr import AttrFlag, AuxAction, config_value

if TYPE_CHECKING:
    from rtit.perfdata import IntelPtInfo, PerfData

_PSB_SHIFT = 11
_MOST_MTC = 15

_SWITCHES = {
    0: "not recorded",
    1: "samples of sched:sched_switch",
    2: "SWITCH, of the traced threads",
    3: "SWITCH_CPU_WIDE, of all threads",
}

_MORE = (
    ("noretcomp", "every RET has its own packet (no RET compression)"),
    ("ptw", "PTWRITE"),
    ("fup_on_ptw", "PTWRITE with its address"),
    ("pwr_evt", "power events"),
    ("event", "interrupts and exceptions (event trace)"),
    ("notnt", "no conditional branches (TNT off): what ran cannot be followed"),
)


def switches_in_words(data: PerfData) -> str | None:
    """How the file tells who had a CPU when; None for buffers of threads."""
    info = data.info
    if info is None or not info.per_cpu_mmaps:
        return None
    return _SWITCHES.get(info.have_sched_switch, f"of kind {info.have_sched_switch}, not known")


def settings_in_words(data: PerfData) -> list[str]:
    """What was traced, and how; empty without Intel PT."""
    return list(_settings(data))


def _settings(data: PerfData) -> Iterator[str]:
    info, event = data.info, data.intel_pt
    if info is None or event is None:
        return
    config, flags = event.attr.config, event.attr.flags
    user, kernel = (not flags & each for each in (AttrFlag.EXCLUDE_USER, AttrFlag.EXCLUDE_KERNEL))
    what = {
        (True, True): "user code and kernel",
        (True, False): "user code",
        (False, True): "kernel",
    }
    where = "a buffer a CPU" if info.per_cpu_mmaps else "a buffer a thread"
    kind = ", snapshots: the last of each" if info.snapshot_mode else ""
    if data.samples_aux:
        kind = ", the last of each with every sample"
    yield f"{what.get((user, kernel), 'nothing')}, {where}{kind}"
    if info.filter:
        yield f"filter: {info.filter}"
    if not config_value(config, "branch") and config_value(config, "pt"):
        yield "no branches: what ran cannot be followed"
    yield _time(data, info, config)
    yield f"PSB about every {2 << _PSB_SHIFT - 1 + config_value(config, 'psb_period'):,} bytes"
    yield from (text for term, text in _MORE if config_value(config, term))
    for counter, of in sorted(data.pebs_counters.items()):
        yield f"PEBS records of counter {counter}: {of.name or 'an event without a name'}"
    yield from _actions(data)


def _actions(data: PerfData) -> Iterator[str]:
    if any(each.attr.aux_action & AuxAction.START_PAUSED for each in data.events):
        yield "the trace begins paused"
    for action, text in ((AuxAction.PAUSE, "pause"), (AuxAction.RESUME, "resume")):
        names = [each.name or "?" for each in data.events if each.attr.aux_action & action]
        if names:
            yield f"samples that {text} the trace: {', '.join(names)}"


def _time(data: PerfData, info: IntelPtInfo, config: int) -> str:
    if not config_value(config, "tsc"):
        return "time: none (no TSC packets)"
    clock = data.time_conversion
    tick = Fraction(clock.mult, 1 << clock.shift) if clock is not None else None
    text = "time: TSC packets"
    if tick is not None:
        text += f" ({float(1000 / tick):,.0f} MHz)"
    if config_value(config, "mtc"):
        period = info.mtc_period(config)
        if period > _MOST_MTC:
            return f"{text}, MTC of a period that no processor has ({period:#x})"
        ticks = 1 << period
        text += f", MTC every {ticks} crystal clocks"
        if tick is not None and info.tsc_ctc_n and info.tsc_ctc_d:
            text += f" ({float(ticks * tick * info.tsc_ctc_n / info.tsc_ctc_d):,.0f} ns)"
    if config_value(config, "cyc"):
        threshold = config_value(config, "cyc_thresh")
        text += ", CYC" + (f" of {1 << threshold - 1} cycles and more" if threshold else "")
    return text
