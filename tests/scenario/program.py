"""The program that the events of a scenario imply, and the traced path through it.

Each event has an address and a target; straight code (NOPs here) runs between two events. PacketEn
and overflows of the unit say which code is traced. Of the packets, which the scenario itself
expects, only the kinds count: how much of the path before a loss they confirm, and whether a FUP
and TIP.PGD end the path before an instruction, which decoders do not count then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rtit.errors import ScenarioError
from rtit.scenario.model import FAULTS, IP_PACKETS, SHUTDOWN, Scenario, ScenarioEvent
from rtit.scenario.runner import ScenarioMachine
from rtit.scenario.vocabulary import TRACE_UNIT_EVENTS, event_signatures
from rtit.unit.enables import linear_address
from scenario.encoding import NOP, NoFitError, encode

FARTHEST = 0x2000
"""Limit of straight code between two events in bytes; events farther apart are not connected."""

PSB, PSBEND = b"\x02\x82" * 8, b"\x02\x23"
"""Decoders begin at a PSB. An empty PSB+ is prepended to other traces."""

BEFORE = frozenset(
    (
        *("interrupt", "exception", "software_interrupt", "user_interrupt", "task_switch_fault"),
        *("abort_transaction", "init", "smi", "vm_exit", "smm_vm_exit", "aex", "shutdown"),
        *("eenter", "eresume", "eexit", "disable", "stop_clocks", "duty_cycle", "acm_begin"),
        *("senter_sleep", "pebs"),
    )
)
"""Events at an instruction that does not retire before them, or with a FUP at this instruction: no
decoder counts it.
"""

NOTHING = frozenset(
    (
        *("at", "read", "state", "ctl", "vmcs", "change_frequency", "enable", "wake", "retire"),
        *("resolve_deeper", "last_branch", "last_exception", "reset", "sipi", "write"),
        *TRACE_UNIT_EVENTS,
    )
)
"""Events without a relevant instruction."""

AT_CURRENT = frozenset(("resume", "rsm"))
"""Instructions whose events have no address."""


class NoProgramError(Exception):
    """Raised if no program can cause the events."""


@dataclass
class Segment:
    """A path without a loss. A decoder may stop before its end, but not before `least`
    instructions, which the packets before a loss confirm.
    """

    ips: list[int] = field(default_factory=list)
    least: int = 0


@dataclass
class Program:
    """The program of a scenario and its trace.

    `code` by address, the traced `segments`, the trace `raw` and the names of its `packets`, the
    range to trace if there is one; `lengths` of the instructions, and which are `branches`.
    """

    code: dict[int, int] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=lambda: [Segment()])
    raw: bytes = b""
    filter_range: tuple[int, int] | None = None
    lengths: dict[int, int] = field(default_factory=dict)
    branches: set[int] = field(default_factory=set)
    packets: set[str] = field(default_factory=set)

    def sections(self) -> list[tuple[int, bytes]]:
        """Return the code as (address, bytes) without gaps."""
        found: list[tuple[int, bytearray]] = []
        for address in sorted(self.code):
            if not found or found[-1][0] + len(found[-1][1]) != address:
                found.append((address, bytearray()))
            found[-1][1].append(self.code[address])
        return [(address, bytes(data)) for address, data in found]


@dataclass(frozen=True)
class _Step:
    """An executed event at `ip`, after straight code from `start`; execution continues at `after`.

    `traced`: PacketEn was set, or became set at `entered`; `lost`: in an overflow; `ends`: the
    reported path ends here without a packet; `confirms`: packets confirm the path up to here.
    """

    event: ScenarioEvent
    start: int
    ip: int | None
    retires: bool
    after: int
    next_ip: int | None
    target: int
    traced: bool
    entered: int | None
    width: int
    lost: bool
    ends: bool
    confirms: bool
    fup: bool
    packets: frozenset[str]
    operand: int | None
    reached: tuple[int, ...]


def program(scenario: Scenario) -> Program:
    """Return the program of a scenario. Raises NoProgramError with the reason if there is none."""
    if scenario.code:
        raise NoProgramError("the program is given, and has instructions that no event names")
    machine = ScenarioMachine(scenario)
    made = Program()
    raw = bytearray()
    steps: list[_Step] = []
    for event in (*scenario.events, None):
        start = steps[-1].after if steps else 0
        unit = machine.cpu.unit
        if event is None and not unit.state.trigger_en:
            break
        try:
            # Tracing ends with the scenario, which flushes buffered packets.
            ending = ScenarioEvent(0, "disable", "disable", (start - unit.state.arch.linear_base,))
            step, data = _do(machine, event or ending, start)
        except ScenarioError:
            if event is not None:
                raise
            break
        raw += data
        steps.append(step)
    made.raw = bytes(raw) if raw.startswith(PSB) else PSB + PSBEND + bytes(raw)
    ranges = machine.cpu.unit.configuration.ranges
    if len(ranges.filter) == 1:
        made.filter_range = ranges.filter[0]
    for step in steps:
        made.packets |= step.packets
        _add_instruction(made, step)
    for step in steps:
        _walk(made, step)
    for address in (at for step in steps for at in step.reached):
        made.code.setdefault(address, NOP[0])
    return made


def _do(machine: ScenarioMachine, event: ScenarioEvent, start: int) -> tuple[_Step, bytes]:
    unit = machine.cpu.unit
    state = unit.state
    arch, traced, lost = state.arch, state.packet_en, state.overflow is not None
    named = dict(zip(event_signatures()[event.name].positional, event.positional, strict=False))
    addresses = {
        name: linear_address(unit, value)
        for name, value in {**named, **event.named}.items()
        if name in ("ip", "guest_ip", "next_ip", "target")
    }
    ip = start if event.name in AT_CURRENT else addresses.get("ip", addresses.get("guest_ip"))
    if event.name in NOTHING and event.name != "write":
        ip = None
    entered = None if traced or ip is None else _entered(machine, start, ip)
    outcome = machine.run_event(event)
    after = state.ip
    names = {line.name for line in outcome.lines}
    faults = not names.isdisjoint((*FAULTS, SHUTDOWN))
    if ip is not None and (event.name == "pebs" or faults):
        after = ip
    fup = "FUP" in names
    disabled = traced and not state.packet_en
    step = _Step(
        event=event,
        start=start,
        ip=after if event.name == "retire" else ip,
        retires=not faults
        and event.name not in BEFORE | NOTHING
        and not (disabled and fup and "CFE" not in names),
        after=after,
        next_ip=addresses.get("next_ip"),
        target=addresses.get("target", after),
        traced=traced,
        entered=entered,
        width=64 if arch.cs_l and arch.lma else 32 if arch.cs_d else 16,
        lost=lost or state.overflow is not None,
        ends=(disabled and not outcome.raw) or (lost and state.overflow is None),
        confirms=not names.isdisjoint((*IP_PACKETS, "TNT")),
        fup=fup,
        packets=frozenset(names),
        reached=((ip,) if traced and ip is not None else ())
        + ((after,) if state.packet_en else ()),
        operand={**named, **event.named}.get("operand_size"),
    )
    return step, outcome.raw


def _entered(machine: ScenarioMachine, start: int, ip: int) -> int | None:
    """Return where straight code on the path to `ip` enters a traced range, or None."""
    unit = machine.cpu.unit
    state, configuration = unit.state, unit.configuration
    on = state.trigger_en and state.context_en and configuration.branch_en
    if unit.parameters.filter_sequential != "at_boundary" or not on or ip - start > FARTHEST:
        return None
    return next(filter(configuration.ranges.filter_en, range(start, ip + 1)), None)


def _add_instruction(made: Program, step: _Step) -> None:
    name, ip = step.event.name, step.ip
    if ip is None or not step.retires or not (step.traced or step.entered is not None):
        return
    length = None if step.next_ip is None else step.next_ip - ip
    try:
        code = encode(name, ip, length, step.target, step.width, step.operand)
    except NoFitError as error:
        raise NoProgramError(f"line {step.event.line}: {error}") from None
    for at, byte in enumerate(code, ip):
        if made.code.setdefault(at, byte) != byte:
            raise NoProgramError(f"line {step.event.line}: other code is at {at:#x} before")
    if made.lengths.setdefault(ip, len(code)) != len(code):
        raise NoProgramError(f"line {step.event.line}: another instruction is at {ip:#x} before")
    if step.next_ip is None or name in ("conditional", "call", "indirect_call"):
        made.branches.add(ip)


def _walk(made: Program, step: _Step) -> None:
    segment = made.segments[-1]
    before = len(segment.ips)
    if step.ip is not None and (step.traced or step.entered is not None):
        start = step.start if step.entered is None else step.entered
        try:
            _straight(made, segment.ips, start, step.ip, step)
        except NoProgramError:
            if not step.lost:
                raise
        before = len(segment.ips)
        if step.retires:
            segment.ips.append(step.ip)
    if step.confirms and not step.lost:
        # A FUP confirms the path to its instruction, not the instruction.
        segment.least = before if step.fup else len(segment.ips)
    if step.ends:
        made.segments.append(Segment())


def _straight(made: Program, ips: list[int], at: int, to: int, step: _Step) -> None:
    if not 0 <= to - at <= FARTHEST:
        raise NoProgramError(f"line {step.event.line}: nothing leads from {at:#x} to {to:#x}")
    while at < to:
        if at not in made.lengths:
            if made.code.setdefault(at, NOP[0]) != NOP[0]:
                raise NoProgramError(f"line {step.event.line}: other code is at {at:#x} before")
            made.lengths[at] = 1
        if at in made.branches:
            raise NoProgramError(f"line {step.event.line}: a branch at {at:#x} is in the way")
        ips.append(at)
        at += made.lengths[at]
    if at != to:
        raise NoProgramError(f"line {step.event.line}: an instruction lies across {to:#x}")
