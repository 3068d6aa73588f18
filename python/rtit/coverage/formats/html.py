"""Coverage as one page of HTML: the files, then the source of each with what ran, and how often.

A line is marked with the count of how often it ran; of its branches + is a way that was gone, - one
that was not. Source that is not found where the DWARF says stands as its lines' numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.readable import readable

if TYPE_CHECKING:
    from rtit.coverage.lines import Source


_LARGEST = 1 << 24
"""Larger files are not shown."""
_MOST_EMPTY = 1 << 16
"""So many lines in a row that have neither text nor code are shown: lines have any number."""
_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Coverage</title><style>
body { font: 14px sans-serif } pre { font: 12px monospace } td { padding: 0 1em; text-align: right }
td:first-child { text-align: left } .ran { background: #dfd } .not { background: #fdd }
.part { background: #ffc } i { color: #777; font-style: normal }
</style></head><body>
<table><tr><th>file<th>lines<th>branches</tr>"""


def html(sources: Sequence[Source]) -> Iterator[str]:
    """The lines of the page; of files of which no line ran the first table alone tells."""
    yield _HEAD
    for number, source in enumerate(sources):
        path = escape(readable(source.path))
        name = f'<a href="#f{number}">{path}</a>' if source.covered else path
        lines = f"{source.covered}/{source.lines_found}"
        yield f"<tr><td>{name}<td>{lines}<td>{source.ways}/{source.ways_found}</tr>"
    yield "</table>"
    for number, source in enumerate(sources):
        if source.covered:
            yield f'<h2 id="f{number}">{escape(readable(source.path))}</h2>\n<pre>'
            yield from _lines(source)
            yield "</pre>"
    yield "</body></html>"


def _lines(source: Source) -> Iterator[str]:
    text = _text(source.path)
    behind = 1
    for number, count, branches in source.each_line_with_branches():
        yield from _others(text, behind, number)
        behind = number + 1
        ways = [count for each in branches for count in (each.taken, each.passed)]
        marks = "".join("+" if count else "-" for count in ways)
        kind = "not" if not count else "ran" if all(ways) else "part"
        row = f"<i>{number:6}</i> {count:14,} {marks:8} {_shown(text, number)}"
        yield f'<span class="{kind}">{row}</span>'
    yield from _others(text, behind, len(text) + 1)


def _others(text: list[str], begin: int, end: int) -> Iterator[str]:
    """Lines without code."""
    for number in range(begin, min(end, max(begin, len(text) + 1) + _MOST_EMPTY)):
        yield f"<i>{number:6} {'':>14} {'':8}</i> {_shown(text, number)}"


def _shown(text: list[str], number: int) -> str:
    return escape(readable(text[number - 1].expandtabs())) if number <= len(text) else ""


def _text(path: str) -> list[str]:
    try:
        file = Path(path)
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return []
        return file.read_text(encoding="utf-8", errors="replace").split("\n")
    except (OSError, ValueError):
        return []
