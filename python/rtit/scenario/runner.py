"""Run scenarios on a modelled processor, and compare the packets with those expected."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rtit.errors import GeneralProtection, RtitError, ScenarioError, UndefinedOpcode, UsageError
from rtit.processor import Processor
from rtit.registers import CTL, MSRS, Msr
from rtit.scenario.model import (
    MAX_PADS,
    REST,
    SHUTDOWN,
    PacketLine,
    PacketLineReader,
    Scenario,
    ScenarioEvent,
)
from rtit.scenario.parser import load
from rtit.scenario.step import ScenarioStep, UnitStatus
from rtit.scenario.vocabulary import (
    OPERATION_TIMES,
    TRACE_UNIT_EVENTS,
    parse_assignments,
    setting_fields,
)
from rtit.unit.arch_state import VmxControls
from rtit.unit.events.far_transfers import OperationTimes
from rtit.unit.illegal_events import ShutdownEntered, require_legal
from rtit.unit.memory import Memory
from rtit.unit.time_model import TimeModel

_BUFFER_ADDRESS = 0x100_0000
_BUFFER_SIZE = 1 << 20
_TOPA_ADDRESS = 0x1000

_MAX_CYCLES = 1 << 24
_MAX_CRYSTAL_CLOCKS = 1 << 20
"""Limits of the clocks, because their time has MTC and CYC packets. A sleep counts for nothing."""

_EVENTS_WITHOUT_EXECUTION = frozenset(
    ("at", "read", "state", "ctl", "vmcs", "change_frequency", "reset", *TRACE_UNIT_EVENTS)
)
"""Events that execute nothing."""


class ScenarioMachine:
    """A processor with the settings of a scenario, and a buffer for its trace.

    Raises ScenarioError for settings that cannot go together.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._source = scenario.source
        self._ctl = CTL.encode(**{"TraceEn": 1, **scenario.ctl})
        self._out = bytearray()
        self._reader = PacketLineReader()
        self._controls = VmxControls()
        self._shut_down = False
        self._crystal_clocks = self._padding = 0
        memory = Memory(observer=lambda _, data: self._out.extend(data))
        self.cpu = Processor(
            profile=scenario.profile,
            memory=memory,
            time=scenario.time,
            parameters=scenario.parameters,
            arch=scenario.arch,
            fabric=self._out.extend,
        )
        if scenario.profile.single_range:
            self.cpu.set_msr(Msr.OUTPUT_BASE, _BUFFER_ADDRESS)
            self.cpu.set_msr(Msr.OUTPUT_MASK_PTRS, _BUFFER_SIZE - 1)
        elif scenario.profile.topa:
            memory.write_u64(_TOPA_ADDRESS, _BUFFER_ADDRESS | 8 << 6)
            memory.write_u64(_TOPA_ADDRESS + 8, _TOPA_ADDRESS | 1)
            self.cpu.set_msr(Msr.OUTPUT_BASE, _TOPA_ADDRESS)

    def run_event(self, event: ScenarioEvent) -> ScenarioStep:
        """Run one event. Raises ScenarioError if it cannot happen; no event may follow then."""
        wrong = ""
        ends: list[PacketLine] = []
        try:
            self._can_execute(event.name)
            wrong = self._dispatch_event(event)
        except GeneralProtection:
            ends = [PacketLine("#GP")]
        except UndefinedOpcode:
            ends = [PacketLine("#UD")]
        except ShutdownEntered:
            ends = [PacketLine(SHUTDOWN)]
            self._shut_down = True
        except (RtitError, ValueError) as error:
            raise ScenarioError(
                f"{event.name}: {error}", source=self._source, line=event.line
            ) from None
        raw = bytes(self._out)
        self._out.clear()
        lines = self._reader.read_complete_packets(raw)
        if not self.cpu.unit.registers.trace_en:
            self._reader.drop_incomplete_packet()
        return ScenarioStep(event, (*lines, *ends), raw, self._unit_status(), wrong)

    def _unit_status(self) -> UnitStatus:
        state, registers = self.cpu.unit.state, self.cpu.unit.registers
        return UnitStatus(
            trace_en=registers.trace_en,
            trigger_en=state.trigger_en,
            context_en=state.context_en,
            filter_en=state.filter_en,
            branch_en=bool(registers.ctl & CTL["BranchEn"].mask),
            packet_en=state.packet_en,
            overflow=state.overflow is not None,
            stopped=state.stopped,
            error=state.error and state.cycle >= state.error_visible_at,
        )

    def _can_execute(self, name: str) -> None:
        """Raise IllegalEvent for an event that executes while the processor does not run.

        `Processor` checks this for rare events only: a check of every branch would be slow.
        """
        if name in _EVENTS_WITHOUT_EXECUTION:
            self._shut_down &= name != "reset"
            return
        state = self.cpu.unit.state
        require_legal(not self._shut_down or name == "init", "the processor has shut down")
        sleeps = state.asleep or state.in_unreported_sleep
        require_legal(not sleeps or name in ("wake", "resolve_deeper"), "the processor sleeps")
        waits = state.arch.wait_for_sipi
        require_legal(not waits or name in ("sipi", "init"), "the processor waits for SIPI")
        self._shut_down = False

    def _dispatch_event(self, event: ScenarioEvent) -> str:
        cpu, plain, named = self.cpu, event.positional, dict(event.named)
        match event.name:
            case "enable":
                cpu.set_msr(Msr.CTL, self._ctl, next_ip=_ip_argument(event))
            case "disable":
                cpu.set_msr(Msr.CTL, cpu.get_msr(Msr.CTL) & ~1, ip=_ip_argument(event))
            case "ctl":
                self._ctl = CTL.encode(**{"TraceEn": 1, **named})
            case "write":
                cpu.set_msr(*plain, **named)
            case "wrmsr":
                cpu.wrmsr(*plain, **named)
            case "read":
                return self._compare_msr(plain, named)
            case "state":
                found = {key: getattr(cpu.unit.state, key) for key in named}
                return _describe_mismatch("state", found, named)
            case "vmcs":
                self._controls = VmxControls(**named)
            case "pebs":
                self._run_pebs_event(plain, named)
            case "vm_entry":
                wanted = named.pop("returns", None)
                fails = cpu.vm_entry(*plain, controls=self._controls, **named)
                return _describe_mismatch("vm_entry", {"returns": fails}, {"returns": wanted})
            case "smm_vm_exit" | "smm_vm_entry":
                getattr(cpu, event.name)(*plain, controls=self._controls, **named)
            case _:
                self._call_device_method(event.name, plain, named)
        return ""

    def _call_device_method(self, name: str, plain: tuple[Any, ...], named: dict[str, Any]) -> None:
        times = {key[:-3]: named.pop(key) for key in OPERATION_TIMES if key in named}
        for clock in (*times.values(), *(plain[:1] if name == "at" else ())):
            self._check_clock(clock)
        if name == "pad":
            self._padding += max((*plain, *named.values()), default=1)
            if self._padding > MAX_PADS:
                raise ValueError(f"a scenario has at most {MAX_PADS} PADs")
        if times:
            named["times"] = OperationTimes(**times)
        device = self.cpu if hasattr(self.cpu, name) else self.cpu.unit
        getattr(device, name)(*plain, **named)

    def _check_clock(self, clock: int) -> None:
        """Raise ValueError if time until `clock` emits too many packets."""
        unit = self.cpu.unit
        cycle, now = clock * unit.time.cpi, unit.state.cycle
        self._crystal_clocks += max(0, unit.time.art_at(cycle) - unit.time.art_at(now))
        if cycle > _MAX_CYCLES or self._crystal_clocks > _MAX_CRYSTAL_CLOCKS:
            raise ValueError(
                f"{clock} is too far ahead: a scenario has at most {_MAX_CYCLES} core cycles and "
                f"{_MAX_CRYSTAL_CLOCKS} crystal clocks"
            )

    def _compare_msr(self, plain: tuple[Any, ...], named: dict[str, Any]) -> str:
        msr, *value = plain
        if named and msr not in MSRS:
            raise ValueError(f"the fields of MSR {msr:#x} are not known")
        content = self.cpu.get_msr(msr)
        if value and content != value[0]:
            return f"read {content:#x}, expected {value[0]:#x}"
        if not named:
            return ""
        register = MSRS[Msr(msr)]
        names = {row.name for row in register.fields}
        if unknown := named.keys() - names:
            raise ValueError(f"{register.name} has no field {min(unknown)}")
        return _describe_mismatch("read", dict(register.decode(content)), named)

    def _run_pebs_event(self, plain: tuple[Any, ...], named: dict[str, Any]) -> None:
        groups: dict[int, list[tuple[int, int]]] = {}
        clocks: dict[int, int] = {}
        for key in list(named):
            if key.startswith("at_"):
                clocks[int(key[3:], 0)] = clock = named.pop(key)
                self._check_clock(clock)
            elif ":" in key:
                kind, item = (int(number, 0) for number in key.split(":"))
                groups.setdefault(kind, []).append((item, named.pop(key)))
        (ip,) = plain
        self.cpu.pebs(ip, groups, clocks=clocks, **named)


def _ip_argument(event: ScenarioEvent) -> int | None:
    return event.positional[0] if event.positional else event.named.get("ip")


def _describe_mismatch(what: str, found: dict[str, Any], wanted: dict[str, Any]) -> str:
    parts = [
        f"{name}={_format_number(found[name])}, expected {_format_number(value)}"
        for name, value in wanted.items()
        if found[name] != value
    ]
    return f"{what} {'; '.join(parts)}" if parts else ""


def _format_number(value: object) -> str:
    return f"{value:#x}" if type(value) is int else str(value)


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """A scenario that has run to its end."""

    scenario: Scenario
    steps: tuple[ScenarioStep, ...]

    @property
    def as_expected(self) -> bool:
        """Whether every event produced the expected packets."""
        return all(step.as_expected for step in self.steps)

    @property
    def raw(self) -> bytes:
        """The trace: the bytes of all steps."""
        return b"".join(step.raw for step in self.steps)

    @property
    def report(self) -> str:
        """Each step that differs, with its line and the difference; "" if none does."""
        return "\n".join(
            _describe_difference(self.scenario, step) for step in self.steps if not step.as_expected
        )

    def _repr_html_(self) -> str:
        from rtit.scenario.html import scenario_fragment

        return scenario_fragment(self.scenario, self.steps)


def run(
    scenario: Scenario | str | os.PathLike[str],
    *,
    profile: str | None = None,
    parameters: Mapping[str, str] | None = None,
) -> ScenarioResult:
    """Run a scenario, or the one in a file, and return its result."""
    read = scenario if isinstance(scenario, Scenario) else load(scenario)
    changed = with_settings(read, profile=profile, parameters=parameters)
    return ScenarioResult(changed, tuple(run_steps(changed)))


def run_steps(scenario: Scenario) -> Iterator[ScenarioStep]:
    """Run the events, and yield each result. Raises ScenarioError at one that cannot happen."""
    try:
        machine = ScenarioMachine(scenario)
    except (RtitError, ValueError) as error:
        raise ScenarioError(
            f"the settings do not go together: {error}", source=scenario.source, line=1
        ) from None
    for event in scenario.events:
        yield machine.run_event(event)


def with_settings(
    scenario: Scenario, *, profile: str | None, parameters: Mapping[str, str] | None
) -> Scenario:
    """Return the scenario with another processor with the same clock, or other parameters.

    Raises UsageError.
    """
    from rtit.registers.parse_names import find_profile

    changed = scenario
    if profile is not None:
        clock = scenario.time or TimeModel.from_profile(scenario.profile)
        changed = replace(changed, profile=find_profile(profile), time=clock)
    if parameters:
        words = [f"{name}={word}" for name, word in parameters.items()]
        try:
            values = parse_assignments(words, setting_fields()["parameters"], "the unit")
        except ValueError as error:
            raise UsageError(str(error)) from None
        changed = replace(changed, parameters=replace(scenario.parameters, **values))
    return changed


def _describe_difference(scenario: Scenario, step: ScenarioStep) -> str:
    signs = {"same": " ", "missing": "-", "extra": "+", "more": " "}
    lines = [f"{scenario.source}:{step.event.line}: {step.event.text}"]
    lines += [f"  {signs[mark]} {text}" for mark, text in step.marked_packet_lines()]
    if step.event.expected.open_end:
        lines.append(f"    {REST}")
    if step.wrong:
        lines.append(f"  ! {step.wrong}")
    return "\n".join(lines)
