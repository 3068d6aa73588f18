"""Format scenario results and lists of scenarios, as text and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from rtit.scenario.catalogue import SECTION_TITLES, chapter_section_sort_key
from rtit.scenario.model import REST, Scenario, format_line
from rtit.scenario.parser import FORMAT
from rtit.scenario.step import ScenarioStep
from rtit.scenario.vocabulary import arch_fields, event_signatures

_MAX_WIDTH = 56
"""Most columns of the left side; a longer event has its own line."""


def format_title(scenario: Scenario) -> str:
    """Return the name of a scenario, its references to the chapter, and its remark."""
    text = f"{Path(scenario.source).stem}: {format_references(scenario) or 'no section'}"
    return f"{text}\n{scenario.remark}" if scenario.remark else text


def format_references(scenario: Scenario) -> str:
    """Return section, tables with rows, and examples of the chapter."""
    parts = [f"section {scenario.section}"] if scenario.section else []
    for table, rows in groupby(scenario.rows, key=lambda row: row.table):
        named = " ".join(row.row for row in rows if row.row)
        parts.append(f"table {table} row {named}" if named else f"table {table}")
    parts += [f"example {example}" for example in scenario.examples]
    return ", ".join(parts)


def event_column_width(scenario: Scenario) -> int:
    """Return the width of the column for the events of a scenario."""
    return min(_MAX_WIDTH, max((len(event.text) for event in scenario.events), default=0))


def format_step(step: ScenarioStep, width: int) -> Iterator[str]:
    """Return an event on the left, `width` columns wide, and its packets on the right; those that
    differ begin with `expected` or `got`.
    """
    words = {"same": "", "more": "", "missing": "expected ", "extra": "got      "}
    right = [f"{words[mark]}{line}" for mark, line in step.marked_packet_lines()]
    if step.event.expected.open_end and not step.as_expected:
        right.append(REST)
    if step.wrong:
        right.append(f"different: {step.wrong}")
    left = f"{step.event.line:4}  {step.event.text}"
    margin = width + 8
    if not right:
        yield left
    elif len(left) > margin - 2:
        yield left
        yield from (" " * margin + line for line in right)
    else:
        yield f"{left:{margin}}{right[0]}"
        yield from (" " * margin + line for line in right[1:])


def step_to_json(step: ScenarioStep) -> dict[str, Any]:
    """Return an event as JSON data; if its packets differ, with those expected."""
    found: dict[str, Any] = {
        "line": step.event.line,
        "event": step.event.text,
        "packets": [format_line(line) for line in step.lines],
        "raw": step.raw.hex(),
        "as_expected": step.as_expected,
    }
    if not step.as_expected:
        expected = step.event.expected
        found["expected"] = [format_line(line) for line in expected.lines]
        if expected.open_end:
            found["expected"].append(REST)
        if expected.raw is not None:
            found["expected_raw"] = expected.raw.hex()
        if step.wrong:
            found["different"] = step.wrong
    return found


def scenario_to_json(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as JSON data, with its program if it has one."""
    found: dict[str, Any] = {
        "name": Path(scenario.source).stem,
        "source": scenario.source,
        "section": scenario.section,
        "tables": [{"table": row.table, "row": row.row} for row in scenario.rows],
        "examples": list(scenario.examples),
        "remark": scenario.remark,
        "spec": list(scenario.spec),
    }
    if scenario.code:
        found["code"] = {f"{address:#x}": data.hex() for address, data in scenario.code.items()}
    return found


def describe_format() -> Iterator[str]:
    """Return the documentation of the format, and every event with its arguments."""
    yield from FORMAT.splitlines()
    yield from textwrap.wrap(
        "Events and their arguments. Arguments in brackets are optional. `...` stands for fields "
        f"of the architectural state, which are {', '.join(arch_fields())}:",
        width=100,
    )
    for name, signature in sorted(event_signatures().items()):
        yield f"  {name} {signature.usage_text}".rstrip()


def list_by_section(scenarios: Iterable[Scenario]) -> Iterator[str]:
    """Return the scenarios as a list, by section of the chapter."""
    ordered = sorted(
        scenarios, key=lambda each: (chapter_section_sort_key(each.section), each.source)
    )
    for section, group in groupby(ordered, key=lambda each: each.section):
        yield f"{section}  {SECTION_TITLES.get(section, '')}".rstrip() if section else "no section"
        for each in group:
            where = format_references(each).partition(", ")[2]
            yield f"  {Path(each.source).stem}" + (f"  ({where})" if where else "")
            if each.remark:
                yield f"      {each.remark.splitlines()[0]}"
