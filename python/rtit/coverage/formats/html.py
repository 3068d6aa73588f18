"""Coverage as one HTML page: a table of files, then the source of each file with counts.

A line shows its count; for its branches, + is an outcome that occurred, - one that did not. A
source file that is missing at the path in the DWARF is listed by line numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from rtit.image.source_lines import read_source
from rtit.text_escaping import escape_control_characters

if TYPE_CHECKING:
    from rtit.coverage.source_coverage import SourceFile

_MAX_EMPTY_LINES = 1 << 16
"""Consecutive lines without text and code that are shown; line numbers can be arbitrary."""
_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Coverage</title><style>
body { font: 14px sans-serif } pre { font: 12px monospace } td { padding: 0 1em; text-align: right }
td:first-child { text-align: left } .ran { background: #dfd } .not { background: #fdd }
.part { background: #ffc } i { color: #777; font-style: normal }
</style></head><body>
<table><tr><th>file<th>lines<th>branches</tr>"""

_LEGEND = """<p>Columns: line, executions, branches (+ for an outcome that occurred, - for one that
did not). Lines: <b class="ran">executed</b>, <b class="part">executed, but some outcome did not
occur</b>, <b class="not">not executed</b>, without colour: no code.</p>"""


def html_report(sources: Sequence[SourceFile]) -> Iterator[str]:
    """Return the lines of the page. Files of which no line ran are in the table only."""
    yield _HEAD
    for number, source in enumerate(sources):
        path = escape(escape_control_characters(source.path))
        name = f'<a href="#f{number}">{path}</a>' if source.lines_hit else path
        lines = f"{source.lines_hit}/{source.line_count}"
        yield f"<tr><td>{name}<td>{lines}<td>{source.outcomes_hit}/{source.outcome_count}</tr>"
    yield "</table>"
    yield _LEGEND
    for number, source in enumerate(sources):
        if source.lines_hit:
            yield f'<h2 id="f{number}">{escape(escape_control_characters(source.path))}</h2>\n<pre>'
            yield from _source_line_rows(source)
            yield "</pre>"
    yield "</body></html>"


def _source_line_rows(source: SourceFile) -> Iterator[str]:
    text = read_source(source.path)
    following = 1
    for number, count, branches in source.iterate_lines_with_branches():
        yield from _lines_without_code(text, following, number)
        following = number + 1
        outcomes = [count for each in branches for count in (each.taken, each.not_taken)]
        signs = "".join("+" if count else "-" for count in outcomes)
        kind = "not" if not count else "ran" if all(outcomes) else "part"
        row = f"<i>{number:6}</i> {count:14,} {signs:8} {_escaped_source_line(text, number)}"
        yield f'<span class="{kind}">{row}</span>'
    yield from _lines_without_code(text, following, len(text) + 1)


def _lines_without_code(text: list[str], begin: int, end: int) -> Iterator[str]:
    """Return lines without code."""
    for number in range(begin, min(end, max(begin, len(text) + 1) + _MAX_EMPTY_LINES)):
        yield f"<i>{number:6} {'':>14} {'':8}</i> {_escaped_source_line(text, number)}"


def _escaped_source_line(text: list[str], number: int) -> str:
    return (
        escape(escape_control_characters(text[number - 1].expandtabs()))
        if number <= len(text)
        else ""
    )
