"""Runs scenarios and compares what they give with what they expect."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from typing import Literal

from rtit.errors import RtitError, ScenarioError, UsageError
from rtit.scenario.lines import REST, show
from rtit.scenario.machine import Machine, Outcome
from rtit.scenario.nodes import Event, Line, Scenario
from rtit.scenario.parser import load
from rtit.scenario.vocabulary import settings
from rtit.scenario.words import assign
from rtit.unit.time_model import TimeModel

_MOST_COMPARED = 1 << 20
"""Pairs of packets up to which the likeness of two lists is looked for."""

Mark = Literal["same", "missing", "extra", "more"]
"""A packet as expected, one that did not come, one that was not expected, one that `...` covers."""


@dataclass(frozen=True, slots=True)
class Step:
    """An event that has happened. `wrong` says what was read otherwise than expected."""

    event: Event
    lines: tuple[Line, ...]
    raw: bytes
    wrong: str = ""

    @property
    def as_expected(self) -> bool:
        """True if nothing differs."""
        if self.wrong:
            return False
        expected = self.event.expected
        if expected.raw is not None:
            return self.raw == expected.raw
        if expected.open_end:
            return self.lines[: len(expected.lines)] == expected.lines
        return self.lines == expected.lines

    def marked(self) -> Iterator[tuple[Mark, str]]:
        """The packets, and in their places those that were expected instead; many PADs as one."""
        for (mark, text), same in groupby(self._marked()):
            count = len(list(same))
            if text == "PAD" and count > 1:
                yield mark, f"PAD * {count}"
            else:
                yield from [(mark, text)] * count

    def _marked(self) -> Iterator[tuple[Mark, str]]:
        expected = self.event.expected
        if expected.raw is not None:
            same = self.raw == expected.raw
            for line in self.lines:
                yield ("same" if same else "extra"), show(line)
            if not same:
                yield "extra", f"= {self.raw.hex(' ')}"
                yield "missing", f"= {expected.raw.hex(' ')}"
            return
        for kind, low, high, first, last in _opcodes(expected.lines, self.lines):
            if kind == "equal":
                yield from (("same", show(line)) for line in self.lines[first:last])
                continue
            yield from (("missing", show(line)) for line in expected.lines[low:high])
            rest = expected.open_end and low == len(expected.lines)
            mark: Mark = "more" if rest else "extra"
            yield from ((mark, show(line)) for line in self.lines[first:last])


@dataclass(frozen=True, slots=True)
class Result:
    """A scenario that has run to its end."""

    scenario: Scenario
    steps: tuple[Step, ...]

    @property
    def as_expected(self) -> bool:
        """True if every event gave what was expected."""
        return all(step.as_expected for step in self.steps)

    @property
    def raw(self) -> bytes:
        """The trace: all bytes in order."""
        return b"".join(step.raw for step in self.steps)

    @property
    def report(self) -> str:
        """Every step that differs, with its line and what differs; "" if none does."""
        return "\n".join(
            _difference(self.scenario, step) for step in self.steps if not step.as_expected
        )


def run(
    scenario: Scenario | str | os.PathLike[str],
    *,
    profile: str | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Result:
    """Run a scenario, or the one in a file.

    `profile` and `parameters` replace those of the scenario; values are words, as in its
    `parameters` line. Raises ScenarioError for a file that is none and for events that cannot
    happen, UsageError for a wrong profile or parameter.
    """
    read = scenario if isinstance(scenario, Scenario) else load(scenario)
    changed = override(read, profile=profile, parameters=parameters)
    return Result(changed, tuple(steps(changed)))


def steps(scenario: Scenario) -> Iterator[Step]:
    """Its events as they happen. Raises ScenarioError at one that cannot."""
    try:
        machine = Machine(scenario)
    except (RtitError, ValueError) as error:
        raise ScenarioError(
            f"the settings do not go together: {error}", source=scenario.source, line=1
        ) from None
    for event in scenario.events:
        outcome: Outcome = machine.do(event)
        yield Step(event, outcome.lines, outcome.raw, outcome.wrong)


def override(
    scenario: Scenario, *, profile: str | None, parameters: Mapping[str, str] | None
) -> Scenario:
    """The same events on another processor with the same clock, or with other parameters. Raises
    UsageError.
    """
    from rtit.registers.names import find_profile

    changed = scenario
    if profile is not None:
        clock = scenario.time or TimeModel.from_profile(scenario.profile)
        changed = replace(changed, profile=find_profile(profile), time=clock)
    if parameters:
        words = [f"{name}={word}" for name, word in parameters.items()]
        try:
            values = assign(words, settings()["parameters"], "the unit")
        except ValueError as error:
            raise UsageError(str(error)) from None
        changed = replace(changed, parameters=replace(scenario.parameters, **values))
    return changed


def _opcodes(
    wanted: tuple[Line, ...], found: tuple[Line, ...]
) -> Iterable[tuple[str, int, int, int, int]]:
    """What turns one into the other, as SequenceMatcher says it; very long ones in one piece from
    the first difference on.
    """
    if len(wanted) * len(found) <= _MOST_COMPARED:
        return SequenceMatcher(None, wanted, found, autojunk=False).get_opcodes()
    both = zip(wanted, found, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
    rest = "replace", same, len(wanted), same, len(found)
    return [("equal", 0, same, 0, same), rest]


def _difference(scenario: Scenario, step: Step) -> str:
    signs = {"same": " ", "missing": "-", "extra": "+", "more": " "}
    lines = [f"{scenario.source}:{step.event.line}: {step.event.text}"]
    lines += [f"  {signs[mark]} {text}" for mark, text in step.marked()]
    if step.event.expected.open_end:
        lines.append(f"    {REST}")
    if step.wrong:
        lines.append(f"  ! {step.wrong}")
    return "\n".join(lines)
