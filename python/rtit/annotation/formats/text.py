"""An annotated function as text: its source with counts, then its machine code.

The machine code is in the order of addresses. Before the first instruction of each source line is
that line, as `perf annotate` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rtit.annotation.annotated_function import (
        AnnotatedFunction,
        AnnotatedInstruction,
        Loop,
    )
    from rtit.annotation.other_counts import OtherCounts
    from rtit.image.inlined_calls import Frame

_MAX_TARGETS = 3
"""Targets of an indirect branch that are shown."""
_HOT, _WARM = 0.05, 0.005
"""Shares of the function's instructions from which on an instruction has a colour (perf's)."""
_TEXT_WIDTH = 34
"""Columns of an instruction before its branch counts."""


class Span(NamedTuple):
    """A part of a line. `style` is one of "", "hot", "warm", "source", "note" and "title"."""

    text: str
    style: str = ""


Line = list[Span]


def annotation_lines(
    annotated: AnnotatedFunction, other: OtherCounts | None = None
) -> Iterator[Line]:
    """Iterate over the lines of an annotated function; with `other`, its counts are beside."""
    yield [Span(heading(annotated), "title")]
    yield [Span(annotated.path, "note")]
    notes = list(annotated.notes)
    if other is not None:
        yield [Span(f"other: {heading(other.function)}", "title")]
        if other.function.path != annotated.path:
            yield [Span(other.function.path, "note")]
        notes += comparison_notes(other)
    for note in notes:
        yield [Span(note, "note")]
    layout = _Layout(annotated, other)
    if any(each.text is not None for each in annotated.lines):
        yield []
        yield from layout.source_lines()
    yield []
    yield from layout.code_lines()


def heading(annotated: AnnotatedFunction) -> str:
    """Return one line about a function: its name, calls and instructions."""
    executed, whole = annotated.executed_instructions, annotated.recording_instructions
    return (
        f"{annotated.name} ({PurePath(annotated.path).name}): "
        f"{_count(annotated.calls, 'call')}, {_count(executed, 'instruction')}, "
        f"{executed / (whole or 1):.1%} of all"
    )


def comparison_notes(other: OtherCounts) -> list[str]:
    """Return sentences about how the other recording was matched."""
    if other.has_same_code:
        return []
    return [
        "the other recording has other machine code for this function: its counts are beside "
        "source lines, by line number, and not beside instructions"
    ]


def inlined_text(frames: Sequence[Frame]) -> str:
    """Return the inlined functions of an instruction, the outermost first."""
    return " > ".join(frame.function for frame in reversed(frames))


def loop_text(loop: Loop) -> str:
    """Return one line about the iterations of a loop."""
    first, last = loop.addresses[0], loop.addresses[-1]
    begin = f", begins at {loop.start:x}" if loop.start != first else ""
    return f"loop {first:x}-{last:x}{begin}: {iterations_text(loop)}"


def iterations_text(loop: Loop) -> str:
    """Return how often a loop was entered, and its iterations."""
    if loop.mean is None:
        return _count(loop.iterations, "iteration") if loop.iterations else "did not run"
    text = f"entered {_count(loop.entries, 'time')}, iterations "
    if loop.least is None or loop.most is None:
        return f"{text}mean {loop.mean:,.1f}"
    return f"{text}least {loop.least:,}, mean {loop.mean:,.1f}, most {loop.most:,}"


def other_iterations_text(loop: Loop, other: OtherCounts | None) -> str:
    """Return the iterations in another recording if they differ, else ""."""
    theirs = other.loops.get(loop.start) if other is not None else None
    if theirs is None or iterations_text(theirs) == iterations_text(loop):
        return ""
    return f"other: {iterations_text(theirs)}"


def branch_text(annotated: AnnotatedFunction, instruction: AnnotatedInstruction) -> str:
    """Return the outcomes of a branch, or "" for other instructions and branches without any."""
    taken, not_taken = instruction.taken, instruction.not_taken
    if taken is not None and not_taken is not None and taken + not_taken:
        share = taken / (taken + not_taken)
        return f"taken {taken:,} ({share:.1%}), not taken {not_taken:,}"
    targets = instruction.targets
    if not targets:
        return ""
    total = sum(each.count for each in targets)
    texts = [
        f"{_short_name(annotated, each.name)} {each.count:,} ({each.count / total:.1%})"
        for each in targets[:_MAX_TARGETS]
    ]
    if len(targets) > _MAX_TARGETS:
        texts.append(f"{len(targets) - _MAX_TARGETS:,} more")
    return f"to {', '.join(texts)}"


def other_branch_text(
    annotated: AnnotatedFunction,
    instruction: AnnotatedInstruction,
    other: AnnotatedInstruction | None,
) -> str:
    """Return the outcomes of a branch in another recording if they differ, else ""."""
    theirs = branch_text(annotated, other) if other is not None else ""
    differs = theirs and theirs != branch_text(annotated, instruction)
    return f"other: {theirs}" if differs else ""


def code_text(annotated: AnnotatedFunction, instruction: AnnotatedInstruction) -> str:
    """Return an instruction with the name of its direct target, as `objdump` prints it."""
    name = _short_name(annotated, instruction.target_name)
    return f"{instruction.text} <{name}>" if name else instruction.text


def _short_name(annotated: AnnotatedFunction, name: str) -> str:
    """Return the name of a target: within the function only the distance to its entry."""
    return name.removeprefix(annotated.name) if name.startswith(f"{annotated.name}+") else name


def heat(count: int, annotated: AnnotatedFunction) -> str:
    """Return "hot", "warm" or "" for the share of an instruction in the function."""
    share = count / (annotated.executed_instructions or 1)
    return "hot" if share >= _HOT else "warm" if share >= _WARM else ""


def loops_by_first_address(annotated: AnnotatedFunction) -> dict[int, list[Loop]]:
    """Return the loops by their lowest address, outer loops first."""
    found: dict[int, list[Loop]] = {}
    for loop in sorted(annotated.loops, key=lambda each: each.depth):
        found.setdefault(loop.addresses[0], []).append(loop)
    return found


def loop_depths(annotated: AnnotatedFunction) -> dict[int, int]:
    """Return the depth of the innermost loop of each instruction in a loop, by address."""
    depths: dict[int, int] = {}
    for loop in annotated.loops:
        for address in loop.addresses:
            depths[address] = max(depths.get(address, 0), loop.depth)
    return depths


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class _Layout:
    """The widths of columns, and the rows."""

    def __init__(self, annotated: AnnotatedFunction, other: OtherCounts | None) -> None:
        self._annotated, self._other = annotated, other
        self._text = {(each.file, each.line): each.text for each in annotated.lines}
        self._depth = max((each.depth for each in annotated.loops), default=0)
        self._loops = loops_by_first_address(annotated)
        self._depths = loop_depths(annotated)

    def source_lines(self) -> Iterator[Line]:
        """Iterate over the source lines with counts."""
        annotated = self._annotated
        yield [Span(f"{self._header}  line  source", "note")]
        file, previous = annotated.lines[0].file, 0
        for each in annotated.lines:
            if each.file != file:
                yield [Span(f"{self._blank}        {each.file}", "note")]
            elif previous and each.line != previous + 1:
                yield [Span(f"{self._blank}   ...", "note")]
            file, previous = each.file, each.line
            counts = self._counts(
                each.count, self._other.count_of_line(each) if self._other else None
            )
            text = (each.text or "").expandtabs()
            yield [Span(counts), Span(f" {each.line:5}  {text}".rstrip(), "source")]

    def code_lines(self) -> Iterator[Line]:
        """Iterate over the instructions, with rows for lines, inlined functions and loops."""
        annotated = self._annotated
        yield [Span(f"{self._header}  share  address    machine code", "note")]
        margin = f"{self._blank}        "
        own_file = annotated.lines[0].file if annotated.lines else ""
        line, frames = ("", 0), ""
        for each in annotated.instructions:
            if inlined_text(each.frames) != frames:
                frames = inlined_text(each.frames)
                if frames:
                    yield [Span(f"{margin}inlined: {frames}", "note")]
            if (each.file, each.line) != line:
                line = each.file, each.line
                if each.line:
                    yield [Span(f"{margin}{self._source_text(each, own_file)}", "source")]
            for loop in self._loops.get(each.address, ()):
                yield [Span(f"{margin}{loop_text(loop)}", "note")]
                if theirs := other_iterations_text(loop, self._other):
                    yield [Span(f"{margin}{theirs}", "note")]
            yield from self._instruction_lines(each)

    def _source_text(self, each: AnnotatedInstruction, own_file: str) -> str:
        place = str(each.line)
        if each.file != own_file:
            place = f"{PurePath(each.file).name}:{each.line}"
        text = (self._text.get((each.file, each.line)) or "").expandtabs()
        return f"{place:>5}  {text}".rstrip()

    def _instruction_lines(self, each: AnnotatedInstruction) -> Iterator[Line]:
        whole = self._annotated.executed_instructions or 1
        other = self._other.instructions.get(each.address) if self._other else None
        share = f"{each.count / whole:6.1%}" if each.count else f"{'':6}"
        gutter = ("|" * self._depths.get(each.address, 0)).ljust(self._depth)
        text = code_text(self._annotated, each)
        counts = self._counts(each.count, other.count if other else None)
        row = [
            Span(f"{counts} {share}", heat(each.count, self._annotated)),
            Span(f" {gutter} {each.address:8x}:  "),
        ]
        outcomes = branch_text(self._annotated, each)
        if not outcomes:
            yield [*row, Span(text)]
        else:
            yield [*row, Span(f"{text:{_TEXT_WIDTH}}"), Span(f"  ; {outcomes}", "note")]
        if theirs := other_branch_text(self._annotated, each, other):
            blank = f"{self._blank}{'':{20 + self._depth + _TEXT_WIDTH}}"
            yield [Span(f"{blank}  ; {theirs}", "note")]

    @property
    def _header(self) -> str:
        return " ".join(f"{each:>14}" for each in ("executions", "other")[: 1 + bool(self._other)])

    @property
    def _blank(self) -> str:
        return " " * (29 if self._other else 14)

    def _counts(self, count: int | None, other: int | None) -> str:
        texts = [count, other] if self._other else [count]
        return " ".join(f"{'' if each is None else f'{each:,}':>14}" for each in texts)
