"""Coverage as one HTML page: tables of folders and files, then the source of each file with counts.

A line shows its count; for its branches, + is an outcome that occurred, - one that did not. A
source file that is missing at the path in the DWARF is listed by line numbers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from rtit.coverage.source_coverage import folder_totals
from rtit.html_page import common_style
from rtit.image.source_lines import read_source
from rtit.text_escaping import escape_control_characters

if TYPE_CHECKING:
    from rtit.coverage.source_coverage import BranchCoverage, FolderTotals, SourceFile

_MAX_EMPTY_LINES = 1 << 16
"""Consecutive lines without text and code that are shown; line numbers can be arbitrary."""
_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Coverage</title>"""

_LEGEND = """<p>Columns: line, executions, branches (+ for an outcome that occurred, - for one that
did not). Lines: <b class="ran">executed</b>, <b class="part">executed, but some outcome did not
occur</b>, <b class="not">not executed</b>, without colour: no code.</p>"""


def html_report(sources: Sequence[SourceFile]) -> Iterator[str]:
    """Return the lines of the page. Files of which no line ran are in the table only."""
    yield _HEAD
    yield f"<style>{common_style()}</style></head><body><main>"
    yield "<h2>Folders</h2>"
    yield from _table("folder", ((_shown(each.path), each) for each in folder_totals(sources)))
    yield "<h2>Files</h2>"
    links = (
        f'<a href="#f{number}">{_shown(each.path)}</a>' if each.lines_hit else _shown(each.path)
        for number, each in enumerate(sources)
    )
    yield from _table("file", zip(links, sources, strict=True))
    yield _LEGEND
    for number, source in enumerate(sources):
        if source.lines_hit:
            yield f'<h2 id="f{number}">{_shown(source.path)}</h2>\n<pre class="source">'
            yield from _source_line_rows(source)
            yield "</pre>"
    yield "</main></body></html>"


def _table(title: str, rows: Iterable[tuple[str, SourceFile | FolderTotals]]) -> Iterator[str]:
    """Return a table of folders or files: markup of the name, and its counts."""
    yield "<div class=wide><table><tr>"
    heads = ("lines", "", "branches", "")
    yield "".join(f"<th>{each}" for each in heads) + f'<th class="name">{title}</tr>'
    for name, counts in rows:
        lines = _share_and_count(counts.lines_hit, counts.line_count)
        branches = _share_and_count(counts.outcomes_hit, counts.outcome_count)
        yield f'<tr>{lines}{branches}<td class="name">{name}</tr>'
    yield "</table></div>"


def _share_and_count(part: int, whole: int) -> str:
    share = f"{part / whole:.1%}" if whole else "-"
    return f"<td>{share}<td>{part:,}/{whole:,}"


def _shown(path: str) -> str:
    return escape(escape_control_characters(path))


def _source_line_rows(source: SourceFile) -> Iterator[str]:
    text = read_source(source.path)
    following = 1
    for number, count, branches in source.iterate_lines_with_branches():
        yield from _lines_without_code(text, following, number)
        following = number + 1
        signs = branch_signs(branches)
        kind = "not" if not count else "part" if "-" in signs else "ran"
        row = f"<i>{number:6}</i> {count:14,} {signs:8} {_escaped_source_line(text, number)}"
        yield f'<span class="{kind}">{row}</span>'
    yield from _lines_without_code(text, following, len(text) + 1)


def branch_signs(branches: Sequence[BranchCoverage]) -> str:
    """Return + for each outcome of the branches that occurred, - for each that did not."""
    outcomes = (count for each in branches for count in (each.taken, each.not_taken))
    return "".join("+" if count else "-" for count in outcomes)


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
