"""An annotated function as HTML: its source and its machine code side by side.

`annotation_page` is a whole page without links to other files. `annotation_html` is the part of it
for one function, for pages with several: such a page has `STYLE` and `SCRIPT` once. The script only
highlights the machine code of a source line, and the line of an instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING

from rtit.annotation.formats.text import (
    branch_text,
    code_text,
    comparison_notes,
    heading,
    heat,
    inlined_text,
    loop_depths,
    loop_text,
    loops_by_first_address,
    other_branch_text,
    other_iterations_text,
)
from rtit.text_escaping import escape_control_characters

if TYPE_CHECKING:
    from rtit.annotation.annotated_function import AnnotatedFunction, AnnotatedInstruction
    from rtit.annotation.other_counts import OtherCounts

STYLE = """\
.annotated { color: #111; background: #fff; font: 14px system-ui, sans-serif }
.annotated h2 { font-size: 17px; margin: 0 0 4px; overflow-wrap: anywhere }
.annotated p { margin: 2px 0; color: #555; overflow-wrap: anywhere }
.annotated .sides { display: grid; gap: 16px; margin-top: 12px;
grid-template-columns: minmax(0, 2fr) minmax(0, 3fr) }
.annotated .side { overflow: auto; max-height: 100vh }
.annotated .side:only-child { grid-column: 1 / -1 }
.annotated table { border-collapse: collapse; white-space: pre;
font: 12px/1.5 ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace }
.annotated th { text-align: left; color: #555; font-weight: normal }
.annotated td, .annotated th { padding: 0 8px }
.annotated .number { text-align: right }
.annotated .note td { color: #555 }
.annotated a { color: #1d4ed8 }
.annotated .hot td:first-child { background: #fecaca }
.annotated .warm td:first-child { background: #fef3c7 }
.annotated .unexecuted td { color: #6b6b73 }
.annotated .marked td, .annotated tr:target td { background: #dbeafe }
@media (max-width: 900px) { .annotated .sides { grid-template-columns: minmax(0, 1fr) } }
@media (prefers-color-scheme: dark) {
.annotated { color: #fafafa; background: #18181b }
.annotated p, .annotated th, .annotated .note td { color: #b4b4bb }
.annotated a { color: #93c5fd }
.annotated .hot td:first-child { background: #7f1d1d }
.annotated .warm td:first-child { background: #713f12 }
.annotated .unexecuted td { color: #a1a1aa }
.annotated .marked td, .annotated tr:target td { background: #1e3a5f }
}"""
"""The style sheet of fragments, for light and dark pages."""

SCRIPT = """\
for (const section of document.querySelectorAll('.annotated')) {
  const mark = event => {
    const row = event.target.closest('tr[data-line]');
    for (const each of section.querySelectorAll('tr[data-line]'))
      each.classList.toggle('marked', row !== null && each.dataset.line === row.dataset.line);
  };
  section.addEventListener('mouseover', mark);
  section.addEventListener('focusin', mark);
}"""
"""The script of a page with fragments. It reads the attribute data-line of rows."""


def annotation_page(
    annotated: AnnotatedFunction, other: OtherCounts | None = None
) -> Iterator[str]:
    """Return the lines of a page with one function."""
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>{_text(annotated.name)}</title><style>"
    yield "html { color-scheme: light dark } body { margin: 16px; background: #fff }"
    yield "@media (prefers-color-scheme: dark) { body { background: #18181b } }"
    yield f"{STYLE}\n</style></head><body>"
    yield from annotation_html(annotated, other)
    yield f"<script>\n{SCRIPT}\n</script></body></html>"


def annotation_html(
    annotated: AnnotatedFunction, other: OtherCounts | None = None, *, prefix: str = "f"
) -> Iterator[str]:
    """Return the lines of a fragment, a `<section class="annotated">`, with one function.

    `other` is the function in another recording (`rtit.annotation.match_counts`). The ids of
    elements begin with `prefix`, which must differ between the fragments of a page.
    """
    yield f'<section class="annotated"><h2>{_text(heading(annotated))}</h2>'
    yield f"<p>{_text(annotated.path)}</p>"
    if other is not None:
        yield f"<p>Other: {_text(heading(other.function))}, {_text(other.function.path)}</p>"
    for note in [*annotated.notes, *(comparison_notes(other) if other else ())]:
        yield f"<p>{_text(note)}</p>"
    yield '<div class="sides">'
    if any(each.text is not None for each in annotated.lines):
        yield from _source_table(annotated, other, prefix)
    yield from _code_table(annotated, other, prefix)
    yield "</div></section>"


def _source_table(
    annotated: AnnotatedFunction, other: OtherCounts | None, prefix: str
) -> Iterator[str]:
    """Return the table of source lines; a line with code links to its first instruction."""
    yield f"{_side('Source')}{_other_header(other)}"
    yield '<th class="number">line</th><th>source</th></tr></thead><tbody>'
    file, previous = annotated.lines[0].file, 0
    for each in annotated.lines:
        if each.file != file:
            yield _note_row(each.file, 3 + (other is not None))
        elif previous and each.line != previous + 1:
            yield _note_row("...", 3 + (other is not None))
        file, previous = each.file, each.line
        number, attributes = f"{each.line}", ""
        if each.addresses:
            number = f'<a href="#{prefix}-{each.addresses[0]:x}">{each.line}</a>'
            attributes = f' data-line="{_line_key(annotated, each.file, each.line)}"'
            if not each.count:
                attributes += ' class="unexecuted"'
        counts = _number(each.count)
        if other is not None:
            counts += _number(other.count_of_line(each))
        text = _text((each.text or "").expandtabs())
        yield f'<tr{attributes}>{counts}<td class="number">{number}</td><td>{text}</td></tr>'
    yield "</tbody></table></div>"


def _code_table(
    annotated: AnnotatedFunction, other: OtherCounts | None, prefix: str
) -> Iterator[str]:
    """Return the table of instructions, with rows for loops and inlined functions."""
    columns = 6 + (other is not None)
    yield f"{_side('Machine code')}{_other_header(other)}"
    yield '<th class="number">share</th><th class="number">line</th>'
    yield "<th>address</th><th>machine code</th><th>branches</th></tr></thead><tbody>"
    loops, depths, frames = loops_by_first_address(annotated), loop_depths(annotated), ""
    for each in annotated.instructions:
        if inlined_text(each.frames) != frames:
            frames = inlined_text(each.frames)
            if frames:
                yield _note_row(f"inlined: {frames}", columns)
        for loop in loops.get(each.address, ()):
            yield _note_row(loop_text(loop), columns)
            if theirs_text := other_iterations_text(loop, other):
                yield _note_row(theirs_text, columns)
        theirs = other.instructions.get(each.address) if other is not None else None
        counts = _number(each.count)
        if other is not None:
            counts += _number(theirs.count if theirs is not None else None)
        yield _instruction_row(annotated, each, theirs, counts, depths.get(each.address, 0), prefix)
    yield "</tbody></table></div>"


def _instruction_row(
    annotated: AnnotatedFunction,
    each: AnnotatedInstruction,
    other: AnnotatedInstruction | None,
    counts: str,
    depth: int,
    prefix: str,
) -> str:
    share = each.count / (annotated.executed_instructions or 1)
    place = f"{each.line}" if each.line else ""
    if each.line and annotated.lines and each.file != annotated.lines[0].file:
        place = f"{PurePath(each.file).name}:{each.line}"
    texts = branch_text(annotated, each), other_branch_text(annotated, each, other)
    outcomes = "; ".join(filter(None, texts))
    key = _line_key(annotated, each.file, each.line)
    style = heat(each.count, annotated) if each.count else "unexecuted"
    return (
        f'<tr id="{prefix}-{each.address:x}" data-line="{key}" class="{style}">{counts}'
        f'<td class="number">{f"{share:.1%}" if each.count else ""}</td>'
        f'<td class="number">{_text(place)}</td><td>{each.address:x}</td>'
        f"<td>{'| ' * depth}{_text(code_text(annotated, each))}</td><td>{_text(outcomes)}</td></tr>"
    )


def _line_key(annotated: AnnotatedFunction, file: str, line: int) -> str:
    """Return what rows of one source line have in common: the number of its file, and the line."""
    files = dict.fromkeys(each.file for each in annotated.lines)
    return f"{[*files].index(file)}:{line}" if file in files else ""


def _side(label: str) -> str:
    return (
        f'<div class="side" role="region" aria-label="{label}" tabindex="0">'
        '<table><thead><tr><th class="number">executions</th>'
    )


def _other_header(other: OtherCounts | None) -> str:
    return '<th class="number">other</th>' if other is not None else ""


def _number(count: int | None) -> str:
    return f'<td class="number">{"" if count is None else f"{count:,}"}</td>'


def _note_row(text: str, columns: int) -> str:
    return f'<tr class="note"><td colspan="{columns}">{_text(text)}</td></tr>'


def _text(text: str) -> str:
    return escape(escape_control_characters(text))
