"""What `rtit info` prints: the recorder, settings, contents, losses and advice.

`summarize_recording` reads the records and scans all packets once. `describe_settings` and
`describe_switches` put the settings of the trace into words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from rtit.image.mappings import has_file
from rtit.perfdata import records as perf
from rtit.perfdata.attr import AttrFlag, AuxAction, config_value
from rtit.perfdata.records import AuxFlag
from rtit.sideband.processes import LOSS_DESCRIPTIONS
from rtit.trace.recording.aux_buffers import BufferSummary, summarize_buffer
from rtit.trace.recording.decoder_settings import describe_clocks

if TYPE_CHECKING:
    from rtit.perfdata import IntelPtInfo, PerfData
    from rtit.trace import Trace


_PSB_SHIFT = 11
_MAX_MTC_PERIOD = 15

_SWITCHES = {
    0: "not recorded",
    1: "samples of sched:sched_switch",
    2: "SWITCH, of the traced threads",
    3: "SWITCH_CPU_WIDE, of all threads",
}

_SETTING_TEXTS = (
    ("noretcomp", "every RET has its own packet (no RET compression)"),
    ("ptw", "PTWRITE"),
    ("fup_on_ptw", "PTWRITE with its address"),
    ("pwr_evt", "power events"),
    ("event", "interrupts and exceptions (event trace)"),
    ("notnt", "no conditional branches (TNT off), so the path cannot be decoded"),
)


def describe_switches(data: PerfData) -> str | None:
    """Return how the recording knows which thread had a CPU; None for buffers of threads."""
    info = data.info
    if info is None or not info.per_cpu_mmaps:
        return None
    return _SWITCHES.get(info.have_sched_switch, f"of kind {info.have_sched_switch}, not known")


def describe_settings(data: PerfData) -> Iterator[str]:
    """Yield the settings of the trace, one sentence each; none without Intel PT."""
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
    where = "one buffer per CPU" if info.per_cpu_mmaps else "one buffer per thread"
    kind = ", snapshots: the last of each" if info.snapshot_mode else ""
    if data.has_aux_samples:
        kind = ", the last of each with every sample"
    yield f"{what.get((user, kernel), 'nothing')}, {where}{kind}"
    if info.filter:
        yield f"filter: {info.filter}"
    if not config_value(config, "branch") and config_value(config, "pt"):
        yield "no branches, so the path cannot be decoded"
    yield _describe_time(data, info, config)
    yield f"PSB about every {2 << _PSB_SHIFT - 1 + config_value(config, 'psb_period'):,} bytes"
    yield from (text for term, text in _SETTING_TEXTS if config_value(config, term))
    for counter, of in sorted(data.pebs_counters.items()):
        yield f"PEBS records of counter {counter}: {of.name or 'an event without a name'}"
    yield from _aux_actions(data)


def _aux_actions(data: PerfData) -> Iterator[str]:
    if any(each.attr.aux_action & AuxAction.START_PAUSED for each in data.events):
        yield "the trace begins paused"
    for action, text in ((AuxAction.PAUSE, "pause"), (AuxAction.RESUME, "resume")):
        names = [each.name or "?" for each in data.events if each.attr.aux_action & action]
        if names:
            yield f"samples that {text} the trace: {', '.join(names)}"


def _describe_time(data: PerfData, info: IntelPtInfo, config: int) -> str:
    if not config_value(config, "tsc"):
        return "time: none (no TSC packets)"
    clock = data.time_conversion
    tick = Fraction(clock.mult, 1 << clock.shift) if clock is not None else None
    text = "time: TSC packets"
    if tick is not None:
        text += f" ({float(1000 / tick):,.0f} MHz)"
    if config_value(config, "mtc"):
        period = info.mtc_period(config)
        if period > _MAX_MTC_PERIOD:
            return f"{text}, MTC of a period that no processor has ({period:#x})"
        ticks = 1 << period
        text += f", MTC every {ticks} crystal clocks"
        if tick is not None and info.tsc_ctc_n and info.tsc_ctc_d:
            text += f" ({float(ticks * tick * info.tsc_ctc_n / info.tsc_ctc_d):,.0f} ns)"
    if config_value(config, "cyc"):
        threshold = config_value(config, "cyc_thresh")
        text += ", CYC" + (f" of {1 << threshold - 1} cycles and more" if threshold else "")
    return text


_MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A mapped file: its build id if known, and why its code is unknown."""

    path: str
    build_id: str | None
    problem: str | None


@dataclass(slots=True)
class RecordingSummary:
    """A recording in words: `machine` has facts by name, the other lists one sentence each.

    `losses` has all missing data except for `files`.
    """

    path: str
    machine: dict[str, str]
    settings: list[str]
    buffers: list[BufferSummary] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    files: list[MappedFile] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[MappedFile]:
        """Files without known code."""
        return [each for each in self.files if each.problem is not None]


def summarize_recording(trace: Trace) -> RecordingSummary:
    """Summarize a recording or raw PT. Scans all packets once. Raises PerfDataError and
    UnsupportedError.
    """
    if trace.is_raw:
        found = RecordingSummary(trace.path, {"what": "raw PT: only packets"}, [])
    else:
        found = RecordingSummary(
            trace.path,
            dict(_machine_facts(trace.data, trace.guest_comms)),
            list(describe_settings(trace.data)),
        )
        found.losses.extend(_losses_in_records(trace))
        found.files.extend(_mapped_files(trace))
    found.buffers.extend(
        summarize_buffer(stream, trace.clock, trace.comms) for stream in trace.streams
    )
    found.losses.extend(_losses_in_packets(found.buffers))
    known = {each.path for each in found.files}
    found.losses.extend(str(each) for each in trace.image_problems if each.path not in known)
    found.hints.extend(_suggest_remedies(trace, found))
    return found


def _machine_facts(
    data: PerfData, comms: Mapping[tuple[int, int], str]
) -> Iterator[tuple[str, str]]:
    facts = data.facts
    writer = "rtit" if facts else "perf"
    rows = (
        ("written by", f"{writer} {data.version}" if data.version else writer),
        ("command", " ".join(data.command_line)),
        ("host", data.hostname),
        ("kernel", data.release),
        ("machine", data.arch),
        ("processor", data.cpuid),
        ("", data.cpu_description if not facts else None),
        ("switches", describe_switches(data)),
        *facts.items(),
    )
    yield from ((name, text) for name, text in rows if text)
    machines: dict[int, set[int]] = {}
    for machine, vcpu in data.guest_ids.values():
        machines.setdefault(machine, set()).add(vcpu)
    named: dict[int, list[str]] = {}
    for (machine, _), name in comms.items():
        named.setdefault(machine, []).append(name)
    for machine, vcpus in sorted(machines.items()):
        names = named.get(machine, [])
        shown = ", ".join(sorted(set(names))[:_MAX_NAMES])
        more = ", ..." if len(set(names)) > _MAX_NAMES else ""
        threads = f"; {len(names):,} threads: {shown}{more}" if names else ""
        yield f"guest {machine}", f"records of {len(vcpus)} of its CPUs{threads}"
    for number, text in enumerate(describe_clocks(data)):
        yield "clock" + (f" {number + 1}" if number else ""), text


def _losses_in_records(trace: Trace) -> Iterator[str]:
    """Yield the losses that records report."""
    flags: Counter[AuxFlag] = Counter()
    events = 0
    for record in trace.data.records():
        if isinstance(record, perf.Aux):
            flags.update(flag for flag in LOSS_DESCRIPTIONS if record.flags & flag)
        elif isinstance(record, perf.Lost | perf.LostSamples):
            events += record.lost
    if trace.incomplete:
        yield f"the file is incomplete: {trace.incomplete}"
    for flag, text in LOSS_DESCRIPTIONS.items():
        if flags[flag]:
            yield f"{flags[flag]:,} times {text}"
    if events:
        yield f"{events:,} sideband records were lost: names, mappings or switches may be missing"


def _losses_in_packets(buffers: list[BufferSummary]) -> Iterator[str]:
    """Yield the losses that packets report."""
    for each in buffers:
        if each.overflows:
            yield f"{each.title}: {each.overflows:,} times the processor dropped packets (OVF)"
        if each.bad:
            yield f"{each.title}: {each.bad:,} bytes are no packet"


def _mapped_files(trace: Trace) -> Iterator[MappedFile]:
    build_ids = trace.data.build_ids
    found: dict[str, MappedFile] = {}
    for mappings in trace.mappings().values():
        for each in mappings:
            if not has_file(each.path) and each.problem is None:
                continue
            build_id = each.build_id or build_ids.get(_path_without_symbol(each.path)) or b""
            text = build_id.hex() if any(build_id) else None
            problem = each.problem.message if each.problem is not None else None
            if each.path not in found or problem is not None:
                found[each.path] = MappedFile(each.path, text, problem)
    return iter(found.values())


def _path_without_symbol(path: str) -> str:
    """Return the path; for the kernel without the symbol that its record appends."""
    end = path.find("]") + 1
    return path[:end] if path.startswith("[") and end else path


def _suggest_remedies(trace: Trace, found: RecordingSummary) -> Iterator[str]:
    if not trace.is_raw and trace.data.info is None:
        yield "the recording has no trace: record with -e intel_pt//"
        return
    if not any(each.size for each in found.buffers):
        yield "the buffers are empty: nothing ran while tracing was on"
    elif not any(each.psbs for each in found.buffers):
        yield "no PSB: nothing can be decoded; record more, or with a smaller psb_period"
    kernel = [each for each in found.missing if each.path.startswith(("[", "/lib/modules/"))]
    if kernel:
        yield (
            "kernel code is missing: record with perf record --kcore, or give a copy of "
            "/proc/kcore: --kcore FILE --kallsyms FILE; or --vmlinux FILE --kernel-modules DIR"
        )
    used = trace.images.kernel.used if trace.images.kernel is not None else None
    if used is not None and used.as_linked:
        keys = f" and {used.static_keys:,} static keys" if used.static_keys else ""
        yield (
            f"kernel code is as it was linked: what boot patches by the processor{keys} is not in "
            "it; where the path breaks off in the kernel, a copy of /proc/kcore would help"
        )
    if len(found.missing) > len(kernel):
        yield (
            "code is missing: copy the files and name them (--map RECORDED=LOCAL, --symfs DIR), "
            "or look them up by build id (--buildid-dir ~/.debug, --debuginfod); rtit pack on "
            "the recording machine collects all files"
        )
    if any(each.overflows for each in found.buffers):
        yield "packets were dropped: record less (with a filter, or only user code), or without "
        "cyc"
    if any("AUX buffer" in each for each in found.losses):
        yield "the AUX buffer was full: record with a larger one (-m ,64M)"
