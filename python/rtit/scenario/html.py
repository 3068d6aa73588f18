"""A scenario as a page: its events over time, the enables as lanes, and the packets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from rtit.packets.html import (
    Lane,
    Row,
    escape_text,
    fragment,
    lanes_note,
    line_element,
    packet_element,
    page,
    unit_table,
)
from rtit.registers import FULL
from rtit.scenario.catalogue import SECTION_TITLES
from rtit.scenario.model import REST, Scenario, format_line
from rtit.scenario.report import format_references
from rtit.scenario.step import ScenarioStep
from rtit.unit.parameters.table import Parameters

LANES = {
    "trace_en": Lane("TraceEn", "33.2.8.3"),
    "trigger_en": Lane("TriggerEn", "33.2.6.2"),
    "context_en": Lane("ContextEn", "33.2.6.3"),
    "filter_en": Lane("FilterEn", "33.2.6.5"),
    "branch_en": Lane("BranchEn", "33.2.6.4"),
    "packet_en": Lane("PacketEn", "33.2.6.1"),
    "overflow": Lane("overflow", "33.3.8"),
    "stopped": Lane("Stopped", "33.2.8.4"),
    "error": Lane("Error", "33.2.8.4"),
}
"""The lane of each field of `UnitStatus`."""
_RARE_LANES = ("overflow", "stopped", "error")
"""Lanes of a page only if they are 1 at some time."""


def scenario_page(
    scenario: Scenario, steps: Sequence[ScenarioStep], *, error: str = "", index: str = ""
) -> Iterator[bytes]:
    """Return the lines of a page.

    `steps`: the events that have run. `error`: why the next event cannot happen. `index`: the
    address of a list of scenarios.
    """
    lines = _scenario_lines(scenario, steps, error)
    name = Path(scenario.source).stem
    link = [f'<p><a href="{escape_text(index)}">All scenarios</a></p>'] if index else []
    return page(f"{name} - rtit scenario", [*link, *lines])


def scenario_fragment(scenario: Scenario, steps: Sequence[ScenarioStep]) -> str:
    """Return a scenario as a part of a page."""
    return "\n".join(fragment(_scenario_lines(scenario, steps, "")))


def _scenario_lines(scenario: Scenario, steps: Sequence[ScenarioStep], error: str) -> Iterator[str]:
    names = [
        name
        for name in LANES
        if name not in _RARE_LANES or any(getattr(step.status, name) for step in steps)
    ]
    lanes = [LANES[name] for name in names]
    yield f"<h1>{escape_text(Path(scenario.source).stem)}</h1>"
    references = format_references(scenario) or "no section"
    title = SECTION_TITLES.get(scenario.section, "")
    yield f"<p>{escape_text(references)}{escape_text(f': {title}') if title else ''}</p>"
    if scenario.remark:
        remark = "\n".join(map(escape_text, scenario.remark.splitlines()))
        yield f'<p class="remark">{remark}</p>'
    for line in _setting_lines(scenario):
        yield f"<p>{escape_text(line)}</p>"
    yield from unit_table(lanes, (_row(step, names) for step in steps), event="events")
    wrong = sum(not step.as_expected for step in steps)
    packets = sum(len(step.lines) for step in steps)
    if error:
        yield f'<p class="wrong">{escape_text(error)}</p>'
    elif wrong:
        yield f'<p class="wrong">DIFFERENT: {wrong} of {len(steps)} events</p>'
    else:
        yield f"<p>as expected: {len(steps)} events, {packets} packets</p>"
    yield lanes_note(lanes)


def _setting_lines(scenario: Scenario) -> Iterator[str]:
    if scenario.profile != FULL:
        yield f"Processor: {scenario.profile.name}"
    usual = Parameters()
    changed = {
        field.name: getattr(scenario.parameters, field.name)
        for field in fields(usual)
        if getattr(scenario.parameters, field.name) != getattr(usual, field.name)
    }
    if changed:
        yield "Parameters: " + " ".join(f"{name}={value}" for name, value in changed.items())
    if scenario.ctl:
        written = (
            f"{name}={value}" if value != 1 else name for name, value in scenario.ctl.items()
        )
        yield f"IA32_RTIT_CTL at enable: TraceEn {' '.join(written)}"


def _row(step: ScenarioStep, names: Sequence[str]) -> Row:
    event = f"<small>{step.event.line}</small><code>{escape_text(step.event.text)}</code>"
    values = [getattr(step.status, name) for name in names]
    packets = list(_packet_elements(step))
    return Row(event, values, packets)


def _packet_elements(step: ScenarioStep) -> Iterator[str]:
    words = {"missing": "expected ", "extra": "got ", "same": "", "more": ""}
    for mark, line, count in step.marked_lines():
        text = format_line(line)
        if line.packet is None:
            times = f" * {count}" if count > 1 else ""
            yield line_element(f"{words[mark]}{text}{times}", kind=mark)
        else:
            title = text.removeprefix(line.name).strip()
            yield packet_element(line.packet, title, before=words[mark], count=count, kind=mark)
    if step.event.expected.open_end and not step.as_expected:
        yield line_element(REST)
    if step.wrong:
        yield line_element(f"different: {step.wrong}", kind="extra")
