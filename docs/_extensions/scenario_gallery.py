"""The directive `scenario-gallery`: all scenarios by topic, each with a link to its page.

The pages are written at the end of the build, beside the page with the directive.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.parsers.rst import Directive

from rtit import scenario
from rtit.scenario.catalogue import SECTION_TITLES, chapter_section_sort_key
from rtit.scenario.html import scenario_page
from rtit.scenario.report import format_references

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_PAGE = "reference/scenarios"
"""The page with the directive, and the folder of the scenarios."""


class ScenarioGallery(Directive):
    """Has no arguments."""

    def run(self) -> list[nodes.Node]:
        """Return a section for each section of the chapter, with a list of its scenarios."""
        loaded = sorted(
            map(scenario.load, scenario.shipped_scenarios()),
            key=lambda each: (chapter_section_sort_key(each.section), each.source),
        )
        sections: list[nodes.Node] = []
        for number, group in groupby(loaded, key=lambda each: each.section):
            section = nodes.section(ids=[nodes.make_id(f"section {number}")])
            title = SECTION_TITLES.get(number, "")
            section += nodes.title(text=f"{number} {title[:1].upper()}{title[1:]}".strip())
            section += nodes.bullet_list("", *map(_list_item, group))
            sections.append(section)
        return sections


def _list_item(each: scenario.Scenario) -> nodes.list_item:
    name = Path(each.source).stem
    link = nodes.reference("", name, refuri=f"{Path(_PAGE).name}/{name}.html")
    where = format_references(each).partition(", ")[2]
    remark = each.remark.splitlines()[0] if each.remark else ""
    text = (f" ({where})" if where else "") + (f": {remark}" if remark else "")
    return nodes.list_item("", nodes.paragraph("", "", link, nodes.Text(text)))


def write_pages(folder: Path) -> None:
    """Write a page for each scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in scenario.shipped_scenarios():
        result = scenario.run(path)
        index = f"../{Path(_PAGE).name}.html"
        lines = scenario_page(result.scenario, result.steps, index=index)
        (folder / f"{path.stem}.html").write_bytes(b"".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive, and write the pages at the end."""

    def finish(app: Sphinx, error: Exception | None) -> None:
        if error is None and app.builder.format == "html":
            write_pages(Path(app.outdir) / _PAGE)

    app.add_directive("scenario-gallery", ScenarioGallery)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True}
