"""Form of README, docs and changelog: length, links, make targets, and the map of the code."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

from support.doc_commands import README, ROOT, TEXTS

MARKDOWN = pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LONGEST_LINE, LONGEST_PARAGRAPH = 120, 6


@MARKDOWN
def test_lines_and_paragraphs_of_docs_are_short(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in page.read_text().splitlines() if len(line) > LONGEST_LINE] == []
    lines = text.splitlines()
    for is_prose, group in groupby(
        lines, lambda line: bool(line) and line[0] not in "|#*-[0123456"
    ):
        paragraph = list(group)
        assert not is_prose or len(paragraph) <= LONGEST_PARAGRAPH, paragraph


@MARKDOWN
def test_links_in_docs_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.finditer(page.read_text()):
        target = page.parent / (link[1] or link[3] or page.name)
        assert target.exists(), link[0]
        if link[2]:
            titles = HEADING.findall(target.read_text())
            anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert link[2] in anchors, link[0]


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 150


def test_make_targets_named_in_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {name for page in TEXTS for name in re.findall(r"`make ([\w-]+)`", page.read_text())}
    assert targets
    for target in targets:
        assert f"\n{target}:" in makefile, target


def test_architecture_names_every_package_and_crate() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = {path.parent.name for path in (ROOT / "python" / "rtit").glob("*/__init__.py")}
    crates = {path.parent.name for path in (ROOT / "crates").glob("*/Cargo.toml")}
    for name in packages:
        assert f"../python/rtit/{name}\n" in page or f"`{name}`" in page or f"{name}/" in page, name
    for name in crates:
        assert f"../crates/{name}\n" in page, name
