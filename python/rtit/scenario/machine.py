"""The processor that a scenario runs on: does one event after the other, and collects its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rtit.errors import GeneralProtection, RtitError, ScenarioError, UndefinedOpcode
from rtit.processor import Processor
from rtit.registers import CTL, MSRS, Msr
from rtit.scenario.lines import MOST_PADDING, SHUTDOWN, Reader
from rtit.scenario.nodes import Event, Line, Scenario
from rtit.scenario.vocabulary import HINTS, STAMPS
from rtit.unit.arch_state import VmxControls
from rtit.unit.events.transfers import OperationTimes
from rtit.unit.illegal_events import Shutdown, require
from rtit.unit.memory import Memory

_BUFFER = 0x100_0000
_SIZE = 1 << 20
_TABLE = 0x1000

_MOST_CYCLES = 1 << 24
_MOST_CRYSTAL_CLOCKS = 1 << 20
"""How far a scenario may bring the clocks: MTC and CYC come in their course. A sleep costs
nothing.
"""


_ANY_TIME = frozenset(("at", "read", "state", "ctl", "vmcs", "change_frequency", "reset", *HINTS))
"""Events that execute nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an event has given: lines and their bytes; `wrong` says what was read otherwise than
    expected, "" if nothing.
    """

    lines: tuple[Line, ...]
    raw: bytes
    wrong: str = ""


class Machine:
    """A processor with the settings of a scenario, and a buffer for its trace.

    Raises ScenarioError for settings that cannot go together.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._source = scenario.source
        self._ctl = CTL.encode(**{"TraceEn": 1, **scenario.ctl})
        self._out = bytearray()
        self._reader = Reader()
        self._controls = VmxControls()
        self._shut_down = False
        self._crystal = self._padding = 0
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
            self.cpu.set_msr(Msr.OUTPUT_BASE, _BUFFER)
            self.cpu.set_msr(Msr.OUTPUT_MASK_PTRS, _SIZE - 1)
        elif scenario.profile.topa:
            memory.write_u64(_TABLE, _BUFFER | 8 << 6)
            memory.write_u64(_TABLE + 8, _TABLE | 1)
            self.cpu.set_msr(Msr.OUTPUT_BASE, _TABLE)

    def do(self, event: Event) -> Outcome:
        """One event. Raises ScenarioError if it cannot happen; nothing may follow then."""
        wrong = ""
        ends: list[Line] = []
        try:
            self._can_execute(event.name)
            wrong = self._do(event)
        except GeneralProtection:
            ends = [Line("#GP")]
        except UndefinedOpcode:
            ends = [Line("#UD")]
        except Shutdown:
            ends = [Line(SHUTDOWN)]
            self._shut_down = True
        except (RtitError, ValueError) as error:
            raise ScenarioError(
                f"{event.name}: {error}", source=self._source, line=event.line
            ) from None
        raw = bytes(self._out)
        self._out.clear()
        lines = self._reader.read(raw)
        if not self.cpu.unit.registers.trace_en:
            self._reader.cut()
        return Outcome((*lines, *ends), raw, wrong)

    def _can_execute(self, name: str) -> None:
        """Raise IllegalEvent where a processor would have to run that does not.

        `Processor` itself looks at the rarer events only: a look at every branch would cost.
        """
        if name in _ANY_TIME:
            self._shut_down &= name != "reset"
            return
        state = self.cpu.unit.state
        require(not self._shut_down or name == "init", "the processor has shut down")
        sleeps = state.asleep or state.in_unreported_sleep
        require(not sleeps or name in ("wake", "resolve_deeper"), "the processor sleeps")
        waits = state.arch.wait_for_sipi
        require(not waits or name in ("sipi", "init"), "the processor waits for SIPI")
        self._shut_down = False

    def _do(self, event: Event) -> str:
        cpu, plain, named = self.cpu, event.positional, dict(event.named)
        match event.name:
            case "enable":
                cpu.set_msr(Msr.CTL, self._ctl, next_ip=_first(event))
            case "disable":
                cpu.set_msr(Msr.CTL, cpu.get_msr(Msr.CTL) & ~1, ip=_first(event))
            case "ctl":
                self._ctl = CTL.encode(**{"TraceEn": 1, **named})
            case "write":
                cpu.set_msr(*plain, **named)
            case "wrmsr":
                cpu.wrmsr(*plain, **named)
            case "read":
                return self._read(plain, named)
            case "state":
                found = {key: getattr(cpu.unit.state, key) for key in named}
                return _differs("state", found, named)
            case "vmcs":
                self._controls = VmxControls(**named)
            case "pebs":
                self._pebs(plain, named)
            case "vm_entry":
                wanted = named.pop("returns", None)
                fails = cpu.vm_entry(*plain, controls=self._controls, **named)
                return _differs("vm_entry", {"returns": fails}, {"returns": wanted})
            case "smm_vm_exit" | "smm_vm_entry":
                getattr(cpu, event.name)(*plain, controls=self._controls, **named)
            case _:
                self._method(event.name, plain, named)
        return ""

    def _method(self, name: str, plain: tuple[Any, ...], named: dict[str, Any]) -> None:
        stamps = {key[:-3]: named.pop(key) for key in STAMPS if key in named}
        for clock in (*stamps.values(), *(plain[:1] if name == "at" else ())):
            self._soon(clock)
        if name == "pad":
            self._padding += max((*plain, *named.values()), default=1)
            if self._padding > MOST_PADDING:
                raise ValueError(f"a scenario has at most {MOST_PADDING} PADs")
        if stamps:
            named["stamps"] = OperationTimes(**stamps)
        of = self.cpu if hasattr(self.cpu, name) else self.cpu.unit
        getattr(of, name)(*plain, **named)

    def _soon(self, clock: int) -> None:
        """The way to `clock` gives no more packets than can be kept."""
        unit = self.cpu.unit
        cycle, now = clock * unit.time.cpi, unit.state.cycle
        self._crystal += max(0, unit.time.art_at(cycle) - unit.time.art_at(now))
        if cycle > _MOST_CYCLES or self._crystal > _MOST_CRYSTAL_CLOCKS:
            raise ValueError(
                f"{clock} is too far ahead: a scenario has at most {_MOST_CYCLES} core cycles and "
                f"{_MOST_CRYSTAL_CLOCKS} crystal clocks"
            )

    def _read(self, plain: tuple[Any, ...], named: dict[str, Any]) -> str:
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
        return _differs("read", dict(register.decode(content)), named)

    def _pebs(self, plain: tuple[Any, ...], named: dict[str, Any]) -> None:
        groups: dict[int, list[tuple[int, int]]] = {}
        clocks: dict[int, int] = {}
        for key in list(named):
            if key.startswith("at_"):
                clocks[_block(key[3:])] = clock = named.pop(key)
                self._soon(clock)
            elif ":" in key:
                kind, item = key.split(":")
                groups.setdefault(_block(kind), []).append((_block(item), named.pop(key)))
        (ip,) = plain
        self.cpu.pebs(ip, groups, clocks=clocks, **named)


def _block(word: str) -> int:
    """The type of a block or the ID of an item."""
    return int(word, 0)


def _first(event: Event) -> int | None:
    return event.positional[0] if event.positional else event.named.get("ip")


def _differs(what: str, found: dict[str, Any], wanted: dict[str, Any]) -> str:
    parts = [
        f"{name}={_shown(found[name])}, expected {_shown(value)}"
        for name, value in wanted.items()
        if found[name] != value
    ]
    return f"{what} {'; '.join(parts)}" if parts else ""


def _shown(value: object) -> str:
    return f"{value:#x}" if type(value) is int else str(value)
