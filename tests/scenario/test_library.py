"""Shipped scenarios run as expected, and cover every row of the chapter's tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rtit.scenario import ChapterTableRow, Scenario, load, run, shipped_scenarios
from rtit.scenario.catalogue import SECTION_TITLES

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
LOADED = [load(path) for path in shipped_scenarios()]
NAMED = [
    pytest.param(each, id=Path(each.source).stem, marks=pytest.mark.spec(*each.spec))
    for each in LOADED
]


@pytest.mark.parametrize("scenario", NAMED)
def test_scenario_produces_its_expected_packets(scenario: Scenario) -> None:
    result = run(scenario)
    assert result.as_expected, result.report


def table_rows() -> list[tuple[ChapterTableRow, str]]:
    with (REQUIREMENTS / "table_rows.csv").open(newline="") as file:
        return [
            (ChapterTableRow(line["table"], line["row"]), line["requirement"])
            for line in csv.DictReader(file)
        ]


def test_every_row_of_the_tables_has_a_scenario() -> None:
    """`table_rows.csv` has the rows of the tables of generated packets, by the chapter's number or
    else by position, without those about reserved types.
    """
    present = {row for each in LOADED for row in each.rows}
    assert [row for row, _ in table_rows() if row not in present] == []


def test_table_rows_are_those_of_the_chapter() -> None:
    known = {row for row, _ in table_rows()}
    wrong = {each.source: row for each in LOADED for row in each.rows if row not in known}
    assert wrong == {}


def test_scenario_of_a_row_tests_its_requirement() -> None:
    requirement = dict(table_rows())
    for each in LOADED:
        for row in each.rows:
            assert requirement[row] in each.spec, each.source


def test_table_rows_name_known_requirements() -> None:
    with (REQUIREMENTS / "ids.csv").open(newline="") as file:
        known = {line["id"] for line in csv.DictReader(file)}
    assert {requirement for _, requirement in table_rows()} <= known


def test_worked_examples_have_a_scenario() -> None:
    assert {name for each in LOADED for name in each.examples} == {"33-1", "33-2"}


def test_every_scenario_names_a_section_of_the_chapter() -> None:
    assert [each.source for each in LOADED if each.section not in SECTION_TITLES] == []


def test_every_scenario_has_explicit_expectations() -> None:
    open_ended = [
        f"{each.source}:{event.line}"
        for each in LOADED
        for event in each.events
        if event.expected.open_end
    ]
    assert open_ended == []
