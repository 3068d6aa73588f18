"""Every requirement of the chapter is tested or listed as open, never both."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def requirements_check() -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "requirements" / "check.py"
    spec = importlib.util.spec_from_file_location("requirements_check", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def claimed_ids(requirements_check: ModuleType) -> dict[str, list[str]]:
    locations: dict[str, list[str]] = requirements_check.claimed_ids()
    return locations


def test_marks_name_known_requirements(
    requirements_check: ModuleType, claimed_ids: dict[str, list[str]]
) -> None:
    known = requirements_check.requirements()
    assert {key: locations for key, locations in claimed_ids.items() if key not in known} == {}


def test_tested_requirement_is_not_listed_open(
    requirements_check: ModuleType, claimed_ids: dict[str, list[str]]
) -> None:
    assert {
        key: claimed_ids[key] for key in requirements_check.open_ids() if key in claimed_ids
    } == {}


def test_untested_requirement_is_listed_open(
    requirements_check: ModuleType, claimed_ids: dict[str, list[str]]
) -> None:
    assert (
        sorted(
            set(requirements_check.requirements())
            - set(claimed_ids)
            - set(requirements_check.open_ids())
            - set(requirements_check.note_reasons())
        )
        == []
    )


def test_note_rows_have_reasons_and_no_tests(
    requirements_check: ModuleType, claimed_ids: dict[str, list[str]]
) -> None:
    notes = requirements_check.note_reasons()
    rows = requirements_check.requirements()
    assert {key: rows[key]["kind"] for key in notes} == dict.fromkeys(notes, "note")
    assert list(notes) == sorted(notes)
    assert all(len(reason.split()) > 3 for reason in notes.values())
    assert not set(notes) & (set(claimed_ids) | set(requirements_check.open_ids()))


def test_only_the_decoder_has_open_requirements(requirements_check: ModuleType) -> None:
    rows = requirements_check.requirements()
    assert [key for key in requirements_check.open_ids() if rows[key]["side"] != "decoder"] == []


def test_open_list_is_sorted_and_names_requirements(requirements_check: ModuleType) -> None:
    listed = requirements_check.open_ids()
    assert sorted(set(listed)) == listed
    assert set(listed) <= set(requirements_check.requirements())


def test_requirements_page_lists_all_requirements(requirements_check: ModuleType) -> None:
    assert len(requirements_check.requirements()) == 739
