"""Coverage as text, with a line per file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.coverage.file_coverage import Coverage
    from rtit.coverage.source_coverage import SourceFile


def text_report(found: Coverage, sources: Sequence[SourceFile]) -> Iterator[str]:
    """Return a line for each source file, and the totals."""
    yield f"{'instructions':>14} {'blocks':>9} {'edges':>9}  file"
    for code in found.files:
        if len(code.offset):
            blocks, edges = len(code.range_start), len(code.source)
            yield f"{len(code.offset):14,} {blocks:9,} {edges:9,}  {code.path}"
    if not sources:
        yield "no file has lines of source in its DWARF"
        return
    yield ""
    yield f"{'lines':>15} {'':>6} {'branches':>15} {'':>6} source"
    for source in sources:
        if source.lines_hit:
            yield _line(source)
    untouched = sum(not source.lines_hit for source in sources)
    if untouched:
        yield f"{'':46}... and {untouched:,} of which no line ran"


def _line(source: SourceFile) -> str:
    lines, branches = source.line_count, source.outcome_count
    part = source.lines_hit / lines
    ways = source.outcomes_hit / branches if branches else 1.0
    return (
        f"{source.lines_hit:7,}/{lines:<7,} {part:6.1%} "
        f"{source.outcomes_hit:7,}/{branches:<7,} {ways:6.1%} {source.path}"
    )
