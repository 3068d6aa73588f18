"""Coverage for people: a line a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.coverage.gather import Coverage
    from rtit.coverage.lines import Source


def text(found: Coverage, sources: Sequence[Source]) -> Iterator[str]:
    """Files of code with what of them ran, then files of source."""
    yield f"{'instructions':>14} {'blocks':>9} {'edges':>9}  file"
    for code in found.codes:
        if len(code.offset):
            blocks, edges = len(code.begin), len(code.source)
            yield f"{len(code.offset):14,} {blocks:9,} {edges:9,}  {code.path}"
    if not sources:
        yield "no file has lines of source in its DWARF"
        return
    yield ""
    yield f"{'lines':>15} {'':>6} {'branches':>15} {'':>6} source"
    for source in sources:
        if source.covered:
            yield _line(source)
    untouched = sum(not source.covered for source in sources)
    if untouched:
        yield f"{'':46}... and {untouched:,} of which no line ran"


def _line(source: Source) -> str:
    lines, branches = source.lines_found, source.ways_found
    part = source.covered / lines
    ways = source.ways / branches if branches else 1.0
    return (
        f"{source.covered:7,}/{lines:<7,} {part:6.1%} {source.ways:7,}/{branches:<7,} {ways:6.1%} "
        f"{source.path}"
    )
