"""Coverage of source lines: as text with a line per file, and as lcov's tracefile (geninfo(1),
"FILES"), which genhtml reads.

In the tracefile a conditional branch instruction is a block of two branches: 0 was taken, 1 was
not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from rtit.text_escaping import escape_control_characters

if TYPE_CHECKING:
    from rtit.coverage.file_coverage import Coverage
    from rtit.coverage.source_coverage import SourceFile


def no_lines_message(found: Coverage) -> str:
    """Return the reason why a report of source lines is empty, and the remedy."""
    names = ", ".join(PurePath(each.path).name for each in found.files)
    if not names:
        return "no code with debug information ran"
    return (
        f"{names} has no debug information: compile with -g to see lines "
        "(--format drcov works without)"
    )


def text_report(found: Coverage, sources: Sequence[SourceFile]) -> Iterator[str]:
    """Return a line for each source file, and the totals."""
    yield f"{'instructions':>14} {'blocks':>9} {'edges':>9}  file"
    for code in found.files:
        if len(code.offset):
            blocks, edges = len(code.range_start), len(code.source)
            yield f"{len(code.offset):14,} {blocks:9,} {edges:9,}  {code.path}"
    if not sources:
        yield no_lines_message(found)
        return
    yield ""
    yield f"{'lines':>15} {'':>6} {'branches':>15} {'':>6} source"
    for source in sources:
        if source.lines_hit:
            yield _format_text_line(source)
    untouched = sum(not source.lines_hit for source in sources)
    if untouched:
        yield f"{'':46}... and {untouched:,} of which no line ran"


def _format_text_line(source: SourceFile) -> str:
    lines, branches = source.line_count, source.outcome_count
    part = source.lines_hit / lines
    outcomes = source.outcomes_hit / branches if branches else 1.0
    return (
        f"{source.lines_hit:7,}/{lines:<7,} {part:6.1%} "
        f"{source.outcomes_hit:7,}/{branches:<7,} {outcomes:6.1%} {source.path}"
    )


def lcov_report(sources: Sequence[SourceFile]) -> Iterator[str]:
    """Return the lines of the tracefile."""
    for source in sources:
        yield "TN:"
        yield f"SF:{escape_control_characters(source.path)}"
        names: dict[str, tuple[int, int]] = {}
        for function in source.functions:
            line, count = names.get(function.name, (function.line, 0))
            names[function.name] = line, count + function.count
        for name, (line, _) in names.items():
            yield f"FN:{line},{escape_control_characters(name)}"
        for name, (_, count) in names.items():
            yield f"FNDA:{count},{escape_control_characters(name)}"
        yield f"FNF:{len(names)}"
        yield f"FNH:{sum(count > 0 for _, count in names.values())}"
        last = block = 0
        for branch in source.iterate_branches():
            block = block + 1 if branch.line == last else 0
            last = branch.line
            for number, count in enumerate((branch.taken, branch.not_taken)):
                yield f"BRDA:{branch.line},{block},{number},{count if branch.was_executed else '-'}"
        yield f"BRF:{source.outcome_count}"
        yield f"BRH:{source.outcomes_hit}"
        for line, count in source.iterate_lines():
            yield f"DA:{line},{count}"
        yield f"LF:{source.line_count}"
        yield f"LH:{source.lines_hit}"
        yield "end_of_record"
