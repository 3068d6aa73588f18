"""The reading guide leads to every room in two steps: from the picture to a paragraph, to files."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = (ROOT / "docs" / "reading-guide.md").read_text()
ROOMS = GUIDE.partition("## The rooms")[2].partition("## Around the house")[0]
PICTURE = ROOMS.split("```")[1]
HEADING = re.compile(r"^### (\d+)\. .*$", re.MULTILINE)


def folders() -> set[str]:
    package = {path.parent for path in (ROOT / "python" / "rtit").glob("*/__init__.py")}
    crates = {path.parent for path in (ROOT / "crates").glob("*/Cargo.toml")}
    return {str(path.relative_to(ROOT)) for path in package | crates}


def paragraphs() -> dict[str, str]:
    """By number, with the heading."""
    found = [*HEADING.finditer(ROOMS)]
    ends = [match.start() for match in found] + [len(ROOMS)]
    return {
        match[1]: ROOMS[begin:end]
        for match, (begin, end) in zip(found, pairwise(ends), strict=True)
    }


def test_the_picture_has_every_room_and_its_paragraph() -> None:
    drawn = re.findall(r"((?:crates/)?\w+)/? \[(\d+)\]", PICTURE)
    rooms = {name if "/" in name else f"python/rtit/{name}": number for name, number in drawn}
    assert set(rooms) == folders()
    texts = paragraphs()
    for room, number in rooms.items():
        heading = texts[number].splitlines()[0]
        assert f"`{room}/`" in heading, f"{room} [{number}]: {heading}"


def test_the_paragraphs_lead_to_files() -> None:
    for number, text in paragraphs().items():
        heading, _, body = text.partition("\n")
        rooms = [ROOT / name for name in re.findall(r"`([\w/]+)/`", heading)]
        names = re.findall(r"`([\w./]+(?:\.\w+|/))`", body)
        assert names, heading
        for room in rooms:
            assert room.is_dir(), room
        for name in names:
            places = [*rooms, *(room / "src" for room in rooms), ROOT, ROOT / "tests"]
            found = any((place / name).exists() for place in places)
            found = found or any([*room.rglob(name)] for room in rooms)
            assert found, f"{number}: {name}"


def test_what_is_around_the_house_is_there() -> None:
    around = GUIDE.partition("## Around the house")[2]
    for name in re.findall(r"`([\w/]+/)`", around):
        assert (ROOT / name).is_dir(), name
