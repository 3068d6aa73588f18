"""The page as HTML: the data, compressed, with the style and the scripts that show it."""

from __future__ import annotations

import shlex
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.annotation.formats import html as annotation
from rtit.errors import UnsupportedError
from rtit.html_page import common_style, compress_data, html_page, read_asset
from rtit.text_escaping import escape_control_characters

if TYPE_CHECKING:
    from rtit.views.page.page_data import PageData

MAX_PAGE_BYTES = 15_000_000
_HERE = Path(__file__).parent
_SCRIPTS = ("elements.js", "timeline.js", "recording.js")


def render_page(data: PageData, path: str, *, served: str = "") -> bytes:
    """Return the page of the recording at `path`.

    `served`: "perfetto" if the server of the page opens Perfetto, "file" if it has only the file
    for it; "" for a page in a file. Raises UnsupportedError for a page of 15 MB.
    """
    command = f"rtit timeline --view {shlex.quote(path)}"
    shown = {**data.parts, "served": served, "perfetto_command": escape_control_characters(command)}
    views = _HERE.parent
    style = common_style() + read_asset("recording.css", _HERE)
    style += read_asset("flame_graph.css", views) + annotation.STYLE
    script = read_asset("flame_graph.js", views) + "".join(
        read_asset(each, _HERE) for each in _SCRIPTS
    )
    script += f"function markLinesOfAnnotations() {{\n{annotation.SCRIPT}\n}}\n"
    title = escape(escape_control_characters(data.title))
    body = (
        f'<header><h1>{title}</h1><nav aria-label="Views"></nav></header>\n<main></main>\n'
        "<noscript><p>This page needs JavaScript, which it contains.</p></noscript>"
    )
    page = html_page(
        data.title,
        body,
        style=style,
        script=script,
        data=compress_data(shown),
        connects=bool(served),
    )
    if len(page) >= MAX_PAGE_BYTES:
        raise UnsupportedError(
            f"the page would have {len(page):,} bytes: select fewer threads (--tid, --comm)"
        )
    return page
