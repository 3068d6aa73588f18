"""Names, docs and help texts use the terms of the field, not the words that the project coined.

`COINED_NAMES` were names of types and functions; docs/glossary.md has the terms that replaced those
of users and contributors. Names are checked as a whole; `COINED_WORDS` may not be a part of a name
either. Local variables are not checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtit.cli.commands import COMMANDS
from rtit.cli.main import main
from support.doc_commands import ROOT, TEXTS

COINED_NAMES = """
Acts Added Ahead Bare Behind BoundTo Carry Clocked Composed Copies Crystal Deed Division
EdgeHits Ended Ending Extent Found Gathering Generations Happening How InGuest InOrder InTurn
Jitted Keeper Kept KnownBlocks Later Learned Lease Marks Noise Numbered Numbers Others
Outlook Own OwnVdso Owned Parked Part Parting Patience Piece Pieces Place Placed Places Points
Raisers Raising Reach Room Scout Shelf Shelves Side Spread Stamp Stepped Stretch Stretches Sum
Sums Taken Tally Told Touched Turn TurnList Turns Undecoded Unrolled Unusual Used Visits Walker
Wants Way Ways Whereabouts Which Whose

alike apart behind bare each_cell fill_tip fill_tnt floods gives_up happening heeded in_turn
is_bare of of_rows parked passages patience place places points runs_of scout shelves sums
start_again take_up tell turn turn_list turns unsure verb verbs walk_to walker way ways who_ran
"""
COINED_WORDS = "anew anybody doubt doubts nobody purse somebody told whose"
COINED_PHRASES = re.compile(
    r"\b(nobody|somebody|anew|in vain|bare PT|by turns|whose turn|turn list|purse|scout|"
    r"shel(f|ves)|let go of|(is|are|was|has) told|tells? of|told (once|later)|goes round|verbs?)\b",
    re.IGNORECASE,
)
ALLOWED_NAMES = {"tell": "a method of file objects", "of": "a Rust comment"}
"""Coined names with another, standard meaning, and that meaning."""
FOLDERS = {
    "python": "*.py",
    "crates": "*.rs",
    "tests": "*.py",
    "bench": "*.py",
    "fuzz": "*.[pr]*",
    "demo": "*.py",
}
RUST_NAME = re.compile(r"\b(?:fn|struct|enum|trait|mod|type|const|static|union)\s+([A-Za-z_]\w*)")


def python_names(source: str) -> Iterator[str]:
    """Yield the names of functions, classes, arguments and attributes that a module defines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def names_of_file(path: Path) -> Iterator[str]:
    """Yield the names that a source file defines, and its module name."""
    yield path.stem
    if path.suffix == ".py":
        yield from python_names(path.read_text())
    elif path.suffix == ".rs":
        yield from RUST_NAME.findall(path.read_text())


def is_coined(name: str) -> bool:
    """Return whether a name is a coined one, or has a coined word."""
    parts = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    has_coined_word = any(part.lower() in COINED_WORDS.split() for part in parts)
    public_name = name.lstrip("_")
    return has_coined_word or (
        public_name in COINED_NAMES.split() and public_name not in ALLOWED_NAMES
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_in_code_are_no_coined_words(folder: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / folder).rglob(FOLDERS[folder])
        if path.suffix in (".py", ".rs") and "target" not in path.parts
        for name in names_of_file(path)
        if is_coined(name)
    }
    assert sorted(found) == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_docs_have_no_coined_words(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [match[0] for match in COINED_PHRASES.finditer(text)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_texts_have_no_coined_words(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help-all"])
    assert [match[0] for match in COINED_PHRASES.finditer(capsys.readouterr().out)] == []
