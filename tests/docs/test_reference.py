"""The reference documents every public name."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from types import ModuleType

import pytest

import rtit
from rtit.trace import End
from support.doc_commands import ROOT

REFERENCE = ROOT / "docs" / "reference" / "python"
MODULES = sorted(
    name
    for page in REFERENCE.glob("*.md")
    for name in re.findall(r"automodule:: (\S+)", page.read_text())
)
PACKAGES = {path.parent.name for path in (ROOT / "python" / "rtit").glob("*/__init__.py")}
WITHOUT_API = {"cli", "gdb", "html_page", "views"}
"""Packages that only the command line uses."""


def test_every_package_is_in_the_reference() -> None:
    listed = {name.split(".")[1] for name in MODULES}
    assert listed >= PACKAGES - WITHOUT_API


def public_names(module: ModuleType) -> list[str]:
    """Return `__all__`, or the classes and functions that the module defines."""
    own = [
        name
        for name, member in vars(module).items()
        if (inspect.isclass(member) or inspect.isroutine(member))
        and not name.startswith("_")
        and member.__module__ == module.__name__
    ]
    return list(getattr(module, "__all__", own))


@pytest.mark.parametrize("name", MODULES)
def test_reference_describes_every_public_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    constants = import_module("public_constants").describe_constants
    module = import_module(name)
    assert module.__doc__
    described = constants(module)
    assert public_names(module)
    for public in public_names(module):
        member = getattr(module, public)
        description = member.__doc__ if inspect.isroutine(member) or inspect.isclass(member) else ""
        assert description or inspect.ismodule(member) or described.get(public), public


def test_reference_index_lists_top_level_names() -> None:
    text = (REFERENCE / "index.md").read_text()
    for public in set(rtit.__all__) - {"__version__"}:
        assert re.search(rf"\brtit\.{public}\b", text), public


def test_top_level_names_are_in_the_reference() -> None:
    modules = [import_module(name) for name in MODULES]
    documented = {id(getattr(each, name)) for each in modules for name in public_names(each)}
    for public in set(rtit.__all__) - {"__version__", "scenario"}:
        assert id(getattr(rtit, public)) in documented, public


def test_guide_explains_every_kind_of_branch() -> None:
    text = (ROOT / "docs" / "howto" / "python.md").read_text()
    table = text.partition("## Kinds of branches\n")[2].partition("\n## ")[0]
    named = re.findall(r"`([A-Z_]+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))
    assert sorted(named) == sorted(each.name for each in End)
