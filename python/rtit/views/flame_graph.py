"""The call tree as a flame graph: one SVG file, with a script for zoom and search.

Each frame is a function on top of its caller. Its width is its instructions with those of all
callees, signal handlers too. Without the script, as in an `<img>`, the file is a still picture.
flame_graph.js computes all positions again, from the order of the frames, their depths
(`data-d`) and instructions (`data-n`).
"""

from __future__ import annotations

import re
from binascii import crc32
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rtit.text_escaping import escape_control_characters

if TYPE_CHECKING:
    from rtit.views.call_tree import FunctionNode

MIN_SHARE = 0.001
MAX_DEPTH = 100
"""What a picture shows unless the caller wants another limit."""

_ROW, _MARGIN, _HEAD, _FOOT = 18, 10, 62, 30
"""Heights of a row, above and below the frames, and the space beside them, in pixels."""
_CHARACTER = 7.25
"""Width of a character of 12 pixels in most monospaced fonts."""
_MAX_NAME = 300
"""Characters of a name. Names of C++ and Rust can be much longer."""
_ADDRESS = re.compile(r"(?:^|\+)0x[0-9a-f]+$")


class _Frame(NamedTuple):
    node: FunctionNode
    depth: int
    start: int
    total: int


class _Layout(NamedTuple):
    frames: list[_Frame]
    """Those that are shown, callers first, the root at depth 0."""
    small: int
    """Frames with too few instructions."""
    deep: int
    """Other frames, with too many callers."""


def flame_graph(
    root: FunctionNode,
    title: str,
    *,
    min_share: float = MIN_SHARE,
    max_depth: int = MAX_DEPTH,
    shows_self: bool = True,
    width: int = 1200,
    embedded: bool = False,
) -> Iterator[bytes]:
    """Return the lines of the SVG, in ASCII.

    Frames with a smaller share of the instructions than `min_share`, and those deeper than
    `max_depth`, are left out. `shows_self`: tooltips have the instructions of the function itself.
    `width` is in pixels; in a browser, the width of the window replaces it. `embedded`: for a page
    that has flame_graph.css and flame_graph.js itself.
    """
    lines = _svg_lines(root, title, min_share, max_depth, shows_self, width, embedded)
    return (f"{line}\n".encode("ascii", "xmlcharrefreplace") for line in lines)


def _svg_lines(
    root: FunctionNode,
    title: str,
    min_share: float,
    max_depth: int,
    shows_self: bool,
    width: int,
    embedded: bool,
) -> Iterator[str]:
    frames, small, deep = _lay_out(root, min_share, max_depth)
    bottom = _HEAD + _ROW * max(frame.depth for frame in frames)
    height = bottom + _ROW + _FOOT
    title = _printable(title)
    left_out = [f"{_count(small, 'frame')} under {min_share * 100:g}%"] if small else []
    left_out += [f"{_count(deep, 'frame')} deeper than {max_depth:,}"] if deep else []
    note = f"Not shown: {' and '.join(left_out)}" if left_out else ""
    title_characters = int((width - 2 * _MARGIN) / (_CHARACTER * 15 / 12))
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">'
    )
    yield f"<title>{escape(title)}</title>"
    if not embedded:
        yield f"<style>\n{_read_asset('flame_graph.css')}</style>"
    yield '<rect class="page" width="100%" height="100%"/>'
    yield '<g class="frames">'
    whole = frames[0].total or 1
    scale = (width - 2 * _MARGIN) / whole
    for frame in frames:
        x, y = _MARGIN + frame.start * scale, bottom - _ROW * frame.depth
        yield _frame_element(frame, whole, x, y, frame.total * scale, shows_self)
    yield "</g>"
    yield (
        f'<text class="axis" x="50%" y="{bottom + _ROW + 18}" text-anchor="middle">'
        f"{_count(frames[0].total, 'instruction')}</text>"
    )
    yield f'<g class="head"><rect class="page" width="100%" height="{_HEAD - 4}"/>'
    yield (
        f'<text class="title" x="{_MARGIN}" y="24">{escape(_shorten(title, title_characters))}'
        f'</text>\n<text class="note" x="{_MARGIN}" y="46">{note}</text></g>'
    )
    if not embedded:
        start = 'showFlameGraphFile(document.currentScript.closest("svg"));'
        yield f"<script><![CDATA[\n{_read_asset('flame_graph.js')}{start}\n]]></script>"
    yield "</svg>"


def _read_asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="ascii")


def _lay_out(root: FunctionNode, min_share: float, max_depth: int) -> _Layout:
    nodes, parents, depths = [root], [0], [0]
    for number, node in enumerate(nodes):  # it grows
        for child in node.children.values():
            nodes.append(child)
            parents.append(number)
            depths.append(depths[number] + 1)
    totals = [node.own for node in nodes]
    for number in range(len(nodes) - 1, 0, -1):
        totals[parents[number]] += totals[number]
    small = deep = 0
    shown: dict[int, list[int]] = {}
    for number in range(1, len(nodes)):
        if totals[number] < min_share * totals[0]:
            small += 1
        elif depths[number] > max_depth:
            deep += 1
        else:
            shown.setdefault(parents[number], []).append(number)
    frames, pending = [], [(0, 0)]
    while pending:
        number, start = pending.pop()
        frames.append(_Frame(nodes[number], depths[number], start, totals[number]))
        callees = []
        for callee in sorted(shown.get(number, ()), key=lambda n: (-totals[n], nodes[n].name)):
            callees.append((callee, start))
            start += totals[callee]
        pending += reversed(callees)
    return _Layout(frames, small, deep)


def _frame_element(
    frame: _Frame, whole: int, x: float, y: int, width: float, shows_self: bool
) -> str:
    node = frame.node
    name = (_printable(node.name) or "[unknown]") if frame.depth else "all"
    facts = f"{_count(frame.total, 'instruction')} ({frame.total / whole:.2%})"
    is_function = node.calls > 0 or node.is_inlined
    if is_function and shows_self:
        facts += f", self {node.own:,}"
    if node.calls:
        facts += f", {_count(node.calls, 'call')}"
    if node.file:
        facts += f"\n{_printable(node.file)}"
    label = _shorten(name, int((width - 6) / _CHARACTER))
    text = f'\n<text x="3" y="13">{escape(label)}</text>' if label else ""
    title = escape(f"{name}\n{facts}")
    # an element <svg> clips its label, whatever font there is
    return (
        f'<svg data-d="{frame.depth}" data-n="{frame.total}" x="{_decimal(x)}" y="{y}" '
        f'width="{_decimal(width)}" height="{_ROW - 1}"><title>{title}</title>\n'
        f'<rect width="100%" height="100%" fill="{_colour(name, is_function=is_function)}"/>'
        f"{text}</svg>"
    )


def _colour(name: str, *, is_function: bool) -> str:
    """Return a light colour, the same for all frames of a function: red to yellow, blue for code
    without a symbol, grey for all that is no function.
    """
    from colorsys import hls_to_rgb

    if not is_function:
        return "#d4d4d8"
    function = name.partition(" [")[0]  # without the note
    number = crc32(function.encode())
    one, two = (number & 0xFF) / 255, (number >> 8 & 0xFF) / 255
    is_address = _ADDRESS.search(function) is not None
    hue, saturation = (200 + 20 * one, 0.55) if is_address else (5 + 45 * one, 0.85)
    channels = hls_to_rgb(hue / 360, 0.7 + 0.12 * two, saturation)
    return "#" + "".join(f"{round(255 * each):02x}" for each in channels)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _printable(text: str) -> str:
    return _shorten(escape_control_characters(text[: _MAX_NAME + 1]), _MAX_NAME)


def _shorten(text: str, characters: int) -> str:
    """Return the beginning of a text; nothing if that would be less than two characters."""
    if len(text) <= characters:
        return text
    return f"{text[: characters - 1]}\N{HORIZONTAL ELLIPSIS}" if characters > 2 else ""


def _decimal(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
