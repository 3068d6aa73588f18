"""An event that has run, and how its packets differ from those expected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from typing import Literal, NamedTuple

from rtit.scenario.model import PacketLine, ScenarioEvent, format_line

_MAX_COMPARED = 1 << 20
"""Two lists with more pairs of packets are compared only up to the first difference."""

LineMark = Literal["same", "missing", "extra", "more"]
"""A packet as expected, a missing packet, an unexpected packet, a packet that `...` covers."""


class UnitStatus(NamedTuple):
    """The enables (section 33.2.6), and the states that stop packets.

    `overflow`: an internal buffer overflow is under way. `stopped` and `error` are bits of
    IA32_RTIT_STATUS.
    """

    trace_en: bool
    trigger_en: bool
    context_en: bool
    filter_en: bool
    branch_en: bool
    packet_en: bool
    overflow: bool
    stopped: bool
    error: bool


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """An event that has run. `wrong` describes values that differ from those expected, or is "".
    `status` is that of the trace unit after the event.
    """

    event: ScenarioEvent
    lines: tuple[PacketLine, ...]
    raw: bytes
    status: UnitStatus
    wrong: str = ""

    @property
    def as_expected(self) -> bool:
        """Whether the packets and values are those expected."""
        if self.wrong:
            return False
        expected = self.event.expected
        if expected.raw is not None:
            return self.raw == expected.raw
        if expected.open_end:
            return self.lines[: len(expected.lines)] == expected.lines
        return self.lines == expected.lines

    def marked_packet_lines(self) -> Iterator[tuple[LineMark, str]]:
        """Return the packets, and those that were expected instead; PADs in a row as one line."""
        for mark, line, count in self.marked_lines():
            text = format_line(line)
            yield mark, f"{text} * {count}" if count > 1 else text

    def marked_lines(self) -> Iterator[tuple[LineMark, PacketLine, int]]:
        """Return the packets, and those that were expected instead, each with a count, which is 1
        unless several PADs follow each other.
        """
        for (mark, line), group in groupby(self._mark_differing_lines()):
            equal = list(group)
            if line.name == "PAD":
                yield mark, line, len(equal)
            else:  # lines of equal IPs may have packets of different bytes
                yield from ((mark, each, 1) for _, each in equal)

    def _mark_differing_lines(self) -> Iterator[tuple[LineMark, PacketLine]]:
        expected = self.event.expected
        if expected.raw is not None:
            same = self.raw == expected.raw
            for line in self.lines:
                yield ("same" if same else "extra"), line
            if not same:
                yield "extra", PacketLine("=", (self.raw.hex(" "),))
                yield "missing", PacketLine("=", (expected.raw.hex(" "),))
            return
        for kind, low, high, first, last in _diff_lines(expected.lines, self.lines):
            if kind == "equal":
                yield from (("same", line) for line in self.lines[first:last])
                continue
            yield from (("missing", line) for line in expected.lines[low:high])
            rest = expected.open_end and low == len(expected.lines)
            mark: LineMark = "more" if rest else "extra"
            yield from ((mark, line) for line in self.lines[first:last])


def _diff_lines(
    wanted: tuple[PacketLine, ...], found: tuple[PacketLine, ...]
) -> Iterable[tuple[str, int, int, int, int]]:
    """Return the edits that turn expected lines into actual ones, as `SequenceMatcher` does.

    Very long lists have one edit from the first difference on.
    """
    if len(wanted) * len(found) <= _MAX_COMPARED:
        return SequenceMatcher(None, wanted, found, autojunk=False).get_opcodes()
    both = zip(wanted, found, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
    rest = "replace", same, len(wanted), same, len(found)
    return [("equal", 0, same, 0, same), rest]
