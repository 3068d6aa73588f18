"""Every requirement of the chapter is tested or listed as open, never both."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def check() -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "requirements" / "check.py"
    spec = importlib.util.spec_from_file_location("requirements_check", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def claimed(check: ModuleType) -> dict[str, list[str]]:
    places: dict[str, list[str]] = check.claimed()
    return places


def test_marks_name_known_requirements(check: ModuleType, claimed: dict[str, list[str]]) -> None:
    known = check.requirements()
    assert {key: places for key, places in claimed.items() if key not in known} == {}


def test_what_is_tested_is_not_listed_open(
    check: ModuleType, claimed: dict[str, list[str]]
) -> None:
    assert {key: claimed[key] for key in check.listed_open() if key in claimed} == {}


def test_what_is_not_tested_is_listed_open(
    check: ModuleType, claimed: dict[str, list[str]]
) -> None:
    assert (
        sorted(
            set(check.requirements()) - set(claimed) - set(check.listed_open()) - set(check.notes())
        )
        == []
    )


def test_what_is_set_aside_asks_nothing(check: ModuleType, claimed: dict[str, list[str]]) -> None:
    aside = check.notes()
    rows = check.requirements()
    assert {key: rows[key]["kind"] for key in aside} == dict.fromkeys(aside, "note")
    assert list(aside) == sorted(aside)
    assert all(len(reason.split()) > 3 for reason in aside.values())
    assert not set(aside) & (set(claimed) | set(check.listed_open()))


def test_only_the_decoder_has_open_rows(check: ModuleType) -> None:
    rows = check.requirements()
    assert [key for key in check.listed_open() if rows[key]["side"] != "decoder"] == []


def test_the_open_list_is_clean(check: ModuleType) -> None:
    listed = check.listed_open()
    assert sorted(set(listed)) == listed
    assert set(listed) <= set(check.requirements())


def test_the_list_is_whole(check: ModuleType) -> None:
    assert len(check.requirements()) == 739
