"""An annotated function as one JSON value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtit.annotation.annotated_function import (
        AnnotatedFunction,
        AnnotatedInstruction,
        AnnotatedLine,
        Loop,
    )
    from rtit.annotation.other_counts import OtherCounts


def annotation_json(
    annotated: AnnotatedFunction, other: OtherCounts | None = None
) -> dict[str, Any]:
    """Return a function as JSON values; with `other`, that function is the field "other".

    Each line, instruction and loop then has its counts in the other recording, too, if these are
    known.
    """
    lines = [_line_json(each) for each in annotated.lines]
    instructions = [_instruction_json(each) for each in annotated.instructions]
    loops = [_loop_json(each) for each in annotated.loops]
    value: dict[str, Any] = {
        "function": annotated.name,
        "file": annotated.path,
        "build_id": annotated.build_id.hex() if annotated.build_id else None,
        "address": annotated.address,
        "calls": annotated.calls,
        "instructions_executed": annotated.executed_instructions,
        "instructions_of_recording": annotated.recording_instructions,
        "lines": lines,
        "instructions": instructions,
        "loops": loops,
        "notes": list(annotated.notes),
        "missing": list(annotated.losses),
    }
    if other is not None:
        for line, line_value in zip(annotated.lines, lines, strict=True):
            line_value["other_count"] = other.count_of_line(line)
        for value_of_one in instructions:
            theirs = other.instructions.get(value_of_one["address"])
            value_of_one["other_count"] = theirs.count if theirs is not None else None
        value["other"] = annotation_json(other.function)
    return value


def _line_json(line: AnnotatedLine) -> dict[str, Any]:
    return {
        "file": line.file,
        "line": line.line,
        "text": line.text,
        "count": line.count,
        "addresses": list(line.addresses),
    }


def _instruction_json(instruction: AnnotatedInstruction) -> dict[str, Any]:
    return {
        "address": instruction.address,
        "bytes": instruction.code.hex(),
        "text": instruction.text,
        "count": instruction.count,
        "class": instruction.kind.name.lower(),
        "file": instruction.file or None,
        "line": instruction.line or None,
        "inlined": [
            {"function": frame.function, "file": frame.file, "line": frame.line}
            for frame in instruction.frames
        ],
        "taken": instruction.taken,
        "not_taken": instruction.not_taken,
        "target": instruction.target,
        "target_name": instruction.target_name or None,
        "targets": [
            {"name": each.name, "file": each.file, "address": each.address, "count": each.count}
            for each in instruction.targets
        ],
    }


def _loop_json(loop: Loop) -> dict[str, Any]:
    return {
        "start": loop.start,
        "addresses": list(loop.addresses),
        "depth": loop.depth,
        "entries": loop.entries,
        "iterations": loop.iterations,
        "least": loop.least,
        "mean": loop.mean,
        "most": loop.most,
    }
