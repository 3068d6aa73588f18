"""Reads the pages of `rtit scenario --html` and `rtit packets --html` with an HTML parser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class PageRow:
    """A row: the text of its event, the value of each lane by name, and its packets."""

    event: str = ""
    lanes: dict[str, str] = field(default_factory=dict)
    packets: list[str] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)


class UnitPage(HTMLParser):
    """A page. `tags` are all its elements with their attributes, `text` is all its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[PageRow] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._names: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("br", "meta"):
            return
        kind = (dict(attrs).get("class") or "").partition(" ")[0]
        self._open.append(kind or tag)
        if kind == "lane" and tag == "td" and not self.rows[-1].event:
            self.rows[-1].lanes[self._names[len(self.rows[-1].lanes)]] = ""
        elif tag == "tr" and "bits" not in self._open:
            self.rows.append(PageRow())
        elif tag == "summary":
            self.rows[-1].packets.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()
        if tag == "thead":
            self.rows.pop()  # the head

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            return
        self.text += data
        row = self.rows[-1] if self.rows else PageRow()
        if "unit" not in self._open:
            return
        if "thead" in self._open:
            if "lane" in self._open:
                self._names.append(data)
        elif "lane" in self._open:
            row.lanes[self._names[len(row.lanes) - 1]] = data
        elif "event" in self._open:
            row.event += data
        elif "summary" in self._open and self._open[-1] == "code":
            row.raw.append(bytes.fromhex(data))
        elif "summary" in self._open and self._open[-1] != "small":
            row.packets[-1] += data
