"""Packets and the enables as a table in HTML: time goes down, each lane is a column.

A lane is a thick bar while its value is 1, a thin line while it is 0, and dotted while it is
unknown. A packet unfolds to the meaning of each of its bits. There is no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from rtit.packets.bit_layout import EXP, HEADER, RESERVED, STOP_BIT, UNUSED, BitSpan, bit_spans
from rtit.packets.packet import Packet, describe
from rtit.packets.table import DECLARATION_BY_NAME
from rtit.text_escaping import escape_control_characters

# In a notebook, the variables --jp-... have the colours of JupyterLab's theme, which may be dark
# where the browser is light. The other colours are readable on both.
_STYLE = """
.rtit { --page: var(--jp-layout-color0, #fff); --text: var(--jp-content-font-color1, #111);
--note: var(--jp-content-font-color2, #555); --line: #8b8b94; --rule: #8b8b9455; --on: #2563eb;
--on-text: #fff; --link: #1d4ed8; --head: #8b8b9440; --field: #fde68a; --field-text: #111;
--bad: #dc2626; color: var(--text); background: var(--page);
font: 13px/1.45 system-ui, sans-serif }
.rtit code, .rtit .bits { font: 12px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace }
.rtit h1 { font-size: 17px; margin: 0 0 4px } .rtit h2 { font-size: 14px; margin: 20px 0 4px }
.rtit p { margin: 4px 0; max-width: 90ch; color: var(--note); overflow-wrap: anywhere }
.rtit .remark { color: var(--text); white-space: pre-line } .rtit .wrong { color: var(--bad) }
.rtit a { color: var(--link) }
.rtit .unit { border-collapse: collapse; table-layout: fixed; width: 100%; margin: 8px 0 0;
font-size: 13px }
.rtit .unit > * > tr > * { text-align: left; vertical-align: top; padding: 0; border: 0;
background-color: var(--page); color: var(--text) }
.rtit .unit > thead th { vertical-align: bottom; font-weight: 600; padding: 4px 0 }
.rtit .unit > thead .lane { width: 26px }
.rtit .unit > thead .lane span { writing-mode: vertical-rl; transform: rotate(180deg);
display: block; margin: 0 auto; white-space: nowrap; line-height: 26px }
.rtit .unit > * > tr > .what { padding: 3px 0 3px 14px }
.rtit .unit > tbody > tr > .what { border-top: 1px solid var(--rule) }
.rtit .unit > tbody .lane { height: 26px; text-align: center; font-size: 11px;
background: linear-gradient(var(--line), var(--line)) center / 2px 100% no-repeat, var(--page) }
.rtit .unit > tbody .on { background: linear-gradient(var(--on), var(--on)) center / 14px 100%
no-repeat, var(--page) }
.rtit .unit > tbody .unknown { background: repeating-linear-gradient(var(--line) 0 2px, #0000 2px
6px) center / 2px 100% no-repeat, var(--page) }
.rtit .lane b { position: relative; top: 3px; padding: 0 3px; border-radius: 3px; font-weight: 600;
background: var(--page); color: var(--text) }
.rtit .on b { background: var(--on); color: var(--on-text) }
.rtit .lane i { position: absolute; width: 1px; height: 1px; overflow: hidden;
clip-path: inset(50%) }
.rtit .what > div { display: flex; flex-wrap: wrap; gap: 2px 16px }
.rtit .event { flex: 1 1 240px; min-width: 0; overflow-wrap: anywhere }
.rtit .event small { color: var(--note); display: inline-block; min-width: 3ch; text-align: right;
margin-right: 1ch }
.rtit .packets { flex: 2 1 400px; min-width: 0 }
.rtit summary { cursor: pointer; overflow-wrap: anywhere } .rtit summary b { font-weight: 600 }
.rtit .packet summary code, .rtit summary small, .rtit .facts { color: var(--note) }
.rtit .packet summary code, .rtit summary small { margin-left: 1ch }
.rtit .plain { padding-left: 14px }
.rtit .missing, .rtit .extra { border-left: 3px solid var(--bad); padding-left: 4px }
.rtit .facts { margin: 2px 0 2px 14px }
.rtit .scroll { overflow-x: auto }
.rtit .bits { border-collapse: collapse; table-layout: fixed; width: calc(100% - 14px);
max-width: 620px; min-width: 380px; margin: 2px 0 8px 14px }
.rtit .bits th, .rtit .bits td { border: 1px solid var(--line); padding: 1px 0; font-size: 11px;
text-align: center; font-weight: 400; overflow-wrap: anywhere; color: var(--text);
background: var(--page) }
.rtit .bits th { border: 0; color: var(--note) } .rtit .bits th:first-child { width: 5.5ch }
.rtit .bits .header { background: var(--head) }
.rtit .bits .field { background: var(--field); color: var(--field-text) }
.rtit .bits .reserved { color: var(--note) }
@media (prefers-color-scheme: dark) { .rtit { --page: var(--jp-layout-color0, #18181b);
--text: var(--jp-content-font-color1, #fafafa); --note: var(--jp-content-font-color2, #b4b4bb);
--on: #60a5fa; --on-text: #111; --link: #93c5fd; --field: #713f12; --field-text: #fafafa;
--bad: #fca5a5 } }
"""
_PAGE_STYLE = """
body { margin: 0; background: #fff } .rtit { padding: 16px }
@media (prefers-color-scheme: dark) { body { background: #18181b } }
"""


class Lane(NamedTuple):
    """A column: a bit of the trace unit's state, and the section that defines it."""

    name: str
    section: str


class Row(NamedTuple):
    """A row: what happened, as HTML; the value of each lane after it, None if unknown; packets, as
    HTML.
    """

    event: str
    values: Sequence[bool | None]
    packets: Sequence[str]


def escape_text(text: str) -> str:
    """Return a text as HTML, with control characters escaped."""
    return escape(escape_control_characters(text))


def packet_element(
    packet: Packet, title: str, *, before: str = "", count: int = 1, kind: str = ""
) -> str:
    """Return a packet, which unfolds to its bits.

    `title` follows the name, `before` precedes it. `count`: so many such packets follow each other.
    `kind` is a class.
    """
    row = DECLARATION_BY_NAME[packet.name]
    fields = describe(packet).removeprefix(packet.name).strip()
    facts = [f"section {row.section}, table {row.table}; sent if {row.enables}"]
    if not row.defined:
        facts = ["not in the chapter"]
    facts += [fields] if fields else []
    shown = " ".join(filter(None, (title, f"* {count}" if count > 1 else "")))
    return (
        f'<details class="packet {kind}"><summary>{before}<b>{escape(packet.name)}</b> '
        f"{escape(shown)}<code>{packet.raw.hex(' ')}</code>"
        f"<small>§{escape(row.section)}</small></summary>"
        f'<div class="facts">{escape("; ".join(facts))}</div>{_bit_table(packet)}</details>'
    )


def line_element(text: str, *, kind: str = "") -> str:
    """Return a line that is no packet of the trace: a fault, an error, or a missing packet."""
    return f'<div class="plain {kind}"><b>{escape_text(text)}</b></div>'


def _bit_table(packet: Packet) -> str:
    head = "".join(f'<th scope="col">{bit}</th>' for bit in range(7, -1, -1))
    rows, number = [], 0
    for is_header, group in groupby(bit_spans(packet), key=_is_header):
        spans = list(group)
        if is_header and len(spans) > 1:  # such as the 16 bytes of a PSB
            numbers, cell = f"{number}-{number + len(spans) - 1}", BitSpan(HEADER, " " * 8)
            raw = packet.raw[number : number + len(spans)].hex(" ")
            rows.append(f'<tr><th scope="row">{numbers}</th>{_span_cell(cell, raw)}</tr>')
        else:
            for at, of_byte in enumerate(spans, number):
                cells = "".join(_span_cell(span, span.value) for span in of_byte)
                rows.append(f'<tr><th scope="row">{at}</th>{cells}</tr>')
        number += len(spans)
    table = f'<table class="bits"><tr><th>byte</th>{head}</tr>{"".join(rows)}</table>'
    return f'<div class="scroll">{table}</div>'


def _is_header(spans: Sequence[BitSpan]) -> bool:
    return all(span.name == HEADER for span in spans)


def _span_cell(span: BitSpan, value: str) -> str:
    kinds = {HEADER: "header", STOP_BIT: "header", EXP: "header"}
    kinds |= {RESERVED: "reserved", UNUSED: "reserved"}
    kind = kinds.get(span.name, "field")
    name = span.name
    if kind == "field" and span.high:
        name += f"[{span.high}:{span.low}]" if span.high != span.low else f"[{span.high}]"
    return f'<td colspan="{len(span.value)}" class="{kind}">{value}<br>{escape(name)}</td>'


def unit_table(lanes: Sequence[Lane], rows: Iterable[Row], *, event: str) -> Iterator[str]:
    """Return the lines of a table of rows. `event` is the title of their first texts."""
    yield '<table class="unit"><thead><tr>'
    for lane in lanes:
        title = escape(f"{lane.name}, section {lane.section}")
        yield f'<th class="lane" scope="col" title="{title}"><span>{escape(lane.name)}</span></th>'
    yield (
        f'<th class="what" scope="col"><div><span class="event">{escape(event)}</span>'
        '<span class="packets">packets</span></div></th></tr></thead><tbody>'
    )
    before: Sequence[bool | None] = ()
    for row in rows:
        yield "<tr>" + "".join(
            _lane_cell(value, changes=not before or before[number] is not value)
            for number, value in enumerate(row.values)
        )
        before = row.values
        packets = "".join(row.packets)
        yield (
            f'<td class="what"><div><div class="event">{row.event}</div>'
            f'<div class="packets">{packets}</div></div></td></tr>'
        )
    yield "</tbody></table>"


def _lane_cell(value: bool | None, *, changes: bool) -> str:
    kind = {None: " unknown", True: " on", False: ""}[value]
    text = "?" if value is None else str(int(value))
    # without a change the value is for screen readers only
    tag = "b" if changes else "i"
    return f'<td class="lane{kind}"><{tag}>{text}</{tag}></td>'


def lanes_note(lanes: Sequence[Lane], event: str = "event") -> str:
    """Return a paragraph that explains the lanes; `event` is a word for a row."""
    named = ", ".join(f"{lane.name} (§{lane.section})" for lane in lanes)
    return (
        f"<p>Lanes, after each {event}: {escape(named)}. Thick: 1, thin: 0, dotted: unknown. "
        "Sections and tables are those of the Intel SDM. Select a packet to see its bits.</p>"
    )


def fragment(lines: Iterable[str]) -> Iterator[str]:
    """Return lines with their style, as a part of a page such as a notebook."""
    yield f"<style>{_STYLE}</style>"
    yield '<div class="rtit">'
    yield from lines
    yield "</div>"


def page(title: str, lines: Iterable[str]) -> Iterator[bytes]:
    """Return the lines of a page, in ASCII."""
    yield from (
        f"{line}\n".encode("ascii", "xmlcharrefreplace")
        for line in (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{escape_text(title)}</title><style>{_PAGE_STYLE}</style></head><body>",
            *fragment(lines),
            "</body></html>",
        )
    )
