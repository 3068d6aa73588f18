"""Names of code in docs exist: modules, functions and attributes of rtit, types, and files."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.doc_commands import ROOT, TEXTS

PAGES = [page for page in TEXTS if page.name != "CHANGELOG.md"]
MARKDOWN = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
TYPE = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+")
SOURCE_PATH = re.compile(r"(?:crates|python|tests|docs|bench|fuzz)(?:/[\w.-]+)+/?")
OTHER_TYPES = """
PacketEn TraceEn ContextEn FilterEn TriggerEn BranchEn TraceStop FabricEn EventEn DisTNT
ValueError OSError KeyError TypeError
"""
"""Names of the SDM, and of Python."""


def code_of_page(page: Path) -> Iterator[str]:
    """Yield the inline code of a page, without code blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", text)


def is_importable(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for attribute in parts[count:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@pytest.fixture(scope="module")
def defined_types() -> frozenset[str]:
    """Return the names of all types in Python and Rust."""
    pattern = re.compile(r"\b(?:class|struct|enum|trait|type|union) ([A-Za-z]\w*)")
    files = [*(ROOT / "python").rglob("*.py*"), *(ROOT / "crates").rglob("*.rs")]
    sources = (path.read_text() for path in files if path.suffix in (".py", ".pyi", ".rs"))
    return frozenset(name for source in sources for name in pattern.findall(source))


@MARKDOWN
def test_dotted_names_in_docs_are_importable(page: Path) -> None:
    dotted = [code for code in code_of_page(page) if re.fullmatch(r"rtit(?:\.\w+)+(?:\(\))?", code)]
    assert [name for name in dotted if not is_importable(name.removesuffix("()"))] == []


@MARKDOWN
def test_types_named_in_docs_are_defined(page: Path, defined_types: frozenset[str]) -> None:
    types = {code.partition(".")[0] for code in code_of_page(page)}
    unknown = (
        {name for name in types if TYPE.fullmatch(name)} - defined_types - set(OTHER_TYPES.split())
    )
    assert unknown == set()


@MARKDOWN
def test_code_paths_named_in_docs_exist(page: Path) -> None:
    paths = [code for code in code_of_page(page) if SOURCE_PATH.fullmatch(code)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
