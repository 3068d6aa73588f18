"""The SVG of a flame graph, read by an XML parser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.text_escaping import escape_control_characters
from rtit.views.call_tree import FunctionNode
from rtit.views.flame_graph import flame_graph

SVG = "{http://www.w3.org/2000/svg}"
Nested = dict[str, tuple[int, "Nested"]]
"""Own instructions of each function, and its callees."""

PROGRAM: Nested = {"main": (10, {"work": (20, {"leaf": (40, {})}), "small": (30, {})})}
HOSTILE_NAMES = [
    "operator<< <char>(std::ostream&, char const*)",
    "</title><script>alert(1)</script>",
    "<!-- \" ' & &amp; &#10; &lt;",
    "]]></script><script>alert(1)</script>",
    'x" onload="alert(1)',
    "two\nlines\r\tand \0 \x1b[31m \x7f \x85",
    "\ufffe\uffff\ud800\udcff\u202e\U000e0001",
    "größe 変 \U0001f600",
    "a  b ",
]


class Frame(NamedTuple):
    name: str
    facts: str
    label: str
    colour: str
    left: float
    right: float
    row: int


def make_tree(callees: Nested, name: str = "") -> FunctionNode:
    node = FunctionNode(name)
    for callee, (own, below) in callees.items():
        node.children[callee] = make_tree(below, callee)
        node.children[callee].add(1, own, 0)
    return node


def draw(root: FunctionNode, title: str = "a program", **limits: float) -> bytes:
    return b"".join(flame_graph(root, title, **limits))  # type: ignore[arg-type]


def parse_frames(picture: bytes) -> dict[str, Frame]:
    frames = [parse_frame(each) for each in ElementTree.fromstring(picture).iter(f"{SVG}svg")][1:]
    bottom = frames[0].row
    return {frame.name: frame._replace(row=(bottom - frame.row) // 18) for frame in frames}


def parse_frame(element: ElementTree.Element) -> Frame:
    name, _, facts = element.findtext(f"{SVG}title", "").partition("\n")
    rect = element.find(f"{SVG}rect")
    colour = "" if rect is None else rect.get("fill", "")
    left, width = (float(element.get(each, "0")) for each in ("x", "width"))
    label = element.findtext(f"{SVG}text", "")
    return Frame(name, facts, label, colour, left, left + width, int(element.get("y", "0")))


def parse_note(picture: bytes) -> str:
    texts = ElementTree.fromstring(picture).iter(f"{SVG}text")
    return next(each.text or "" for each in texts if each.get("class") == "note")


def test_frame_is_above_its_caller_and_as_wide_as_its_instructions() -> None:
    frames = parse_frames(draw(make_tree(PROGRAM), width=1020))
    places = {name: (frame.row, frame.left, frame.right) for name, frame in frames.items()}
    assert places == {
        "all": (0, 10, 1010),
        "main": (1, 10, 1010),
        "work": (2, 10, 610),
        "small": (2, 610, 910),
        "leaf": (3, 10, 410),
    }
    assert frames["work"].facts == "60 instructions (60.00%), self 20, 1 call"
    assert frames["leaf"].label == "leaf"


def test_callers_have_no_instructions_of_their_own() -> None:
    frames = parse_frames(draw(make_tree(PROGRAM), shows_self=False))
    assert frames["work"].facts == "60 instructions (60.00%), 1 call"


def test_axis_and_title_say_what_is_shown() -> None:
    root = ElementTree.fromstring(draw(make_tree(PROGRAM), "ls -l"))
    texts = {each.get("class"): each.text for each in root.iter(f"{SVG}text")}
    assert (root.findtext(f"{SVG}title"), texts["title"]) == ("ls -l", "ls -l")
    assert texts["axis"] == "100 instructions"
    assert not texts["note"]


def test_label_fits_into_its_frame() -> None:
    long_name = "a_function_with_a_long_name"
    frames = parse_frames(draw(make_tree({long_name: (25, {}), "other": (975, {})}), width=1020))
    assert frames[long_name].label == ""
    frames = parse_frames(draw(make_tree({long_name: (100, {}), "other": (900, {})}), width=1020))
    assert frames[long_name].label == "a_function_\N{HORIZONTAL ELLIPSIS}"


def test_small_and_deep_frames_are_left_out_and_counted() -> None:
    tree = make_tree({**PROGRAM, "rare": (1, {"rarer": (1, {})})})
    picture = draw(tree, min_share=0.025, max_depth=2)
    assert list(parse_frames(picture)) == ["all", "main", "work", "small"]
    assert parse_note(picture) == "Not shown: 2 frames under 2.5% and 1 frame deeper than 2"
    assert parse_note(draw(tree, min_share=0.025)) == "Not shown: 2 frames under 2.5%"
    assert parse_note(draw(tree, min_share=0, max_depth=2)) == "Not shown: 1 frame deeper than 2"


def test_deep_recursion_gives_a_small_file() -> None:
    root = node = FunctionNode("")
    for _ in range(100_000):
        node = node.child("down")
        node.add(1, 10, 0)
    picture = draw(root)
    assert len(picture) < 100_000
    assert parse_note(picture) == (
        "Not shown: 99 frames under 0.1% and 99,801 frames deeper than 100"
    )


def test_tree_without_instructions_has_a_picture() -> None:
    assert parse_frames(draw(FunctionNode("")))["all"].facts == "0 instructions (0.00%)"


def test_order_of_callees_does_not_change_the_file() -> None:
    callees: Nested = {"one": (5, {}), "two": (5, {}), "three": (6, {})}
    reordered = dict(reversed(callees.items()))
    assert draw(make_tree({"main": (1, callees)})) == draw(make_tree({"main": (1, reordered)}))


def structure(picture: bytes) -> list[tuple[str, list[str]]]:
    """Return the elements in order, each with its attributes; not the labels."""
    elements = ElementTree.fromstring(picture).iter()
    return [(each.tag, sorted(each.keys())) for each in elements if each.get("x") != "3"]


def check_names_add_no_markup(name: str) -> None:
    picture = draw(make_tree({name: (1, {})}), title=name)
    assert structure(picture) == structure(draw(make_tree({"main": (1, {})})))
    picture.decode("ascii")
    shown = escape_control_characters(name) or "[unknown]"
    assert list(parse_frames(picture)) == ["all", shown]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_hostile_name_adds_no_markup(name: str) -> None:
    check_names_add_no_markup(name)


@given(st.text(max_size=40))
def test_any_name_adds_no_markup(name: str) -> None:
    check_names_add_no_markup(name)


def test_long_name_is_cut() -> None:
    (_, name) = parse_frames(draw(make_tree({"f" * 100_000: (1, {})}), "t" * 100_000))
    assert name == "f" * 299 + "\N{HORIZONTAL ELLIPSIS}"


def run_in_chromium(url: str) -> dict[str, list[str]]:
    """Return the texts of a page by class after its scripts ran, and the visible frames."""
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", url]
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {"visible": []}
    for kind, text in re.findall(r'<text[^>]* ?class="(\w+)"[^>]*>([^<]*)', page):
        found.setdefault(kind, []).append(text)
    for tag, name in re.findall("(<svg data-d=[^>]*>)<title>(.*)", page):
        if "none" not in tag:
            found["visible"].append(name)
    return found


def test_address_has_the_zoomed_frame_and_the_search(tmp_path: Path) -> None:
    path = tmp_path / "calls.svg"
    path.write_bytes(draw(make_tree(PROGRAM)))
    page = run_in_chromium(f"{path.as_uri()}#zoom=2&search=LEAF|small")
    assert page["visible"] == ["all", "main", "work", "leaf"]
    assert page["axis"] == ["60 of 100 instructions"]
    assert page["note"][-1] == "2 found, 70.00%"


def test_click_zooms_and_typing_searches(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    script = """<script>
    const frame = document.querySelectorAll(".frames > svg")[4];
    frame.dispatchEvent(new Event("click", {bubbles: true}));
    const input = document.querySelector("input");
    input.value = "work|leaf";
    input.dispatchEvent(new Event("input"));
    </script>"""
    path.write_text(f"<!DOCTYPE html>{draw(make_tree(PROGRAM)).decode()}{script}")
    page = run_in_chromium(path.as_uri())
    assert page["visible"] == ["all", "main", "small"]
    assert page["axis"] == ["30 of 100 instructions"]
    assert page["note"][-1] == "2 found, 60.00%"


def relative_luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@given(st.one_of(st.text(max_size=20), st.integers(0, 1 << 48).map(lambda ip: f"ls+{ip:#x}")))
def test_labels_contrast_with_their_frames(name: str) -> None:
    text = relative_luminance("#111111")
    for frame in parse_frames(draw(make_tree({name: (1, {})}))).values():
        assert re.fullmatch("#[0-9a-f]{6}", frame.colour)
        assert (relative_luminance(frame.colour) + 0.05) / (text + 0.05) >= 7  # level AAA


def test_colour_is_that_of_the_function_and_blue_without_a_symbol() -> None:
    def is_blue(colour: str) -> bool:
        return int(colour[5:], 16) > int(colour[1:3], 16) + 16

    lost = "work [after lost packets]"
    tree = make_tree({**PROGRAM, lost: (5, {}), "ls+0x4730": (5, {}), "0x7f00": (5, {})})
    colours = {name: frame.colour for name, frame in parse_frames(draw(tree)).items()}
    assert colours["work"] == colours[lost] != colours["main"]
    assert [name for name, colour in colours.items() if is_blue(colour)] == ["0x7f00", "ls+0x4730"]
