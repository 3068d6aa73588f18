"""The table of parameters, and its texts."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from rtit.errors import UsageError
from rtit.scenario.catalogue import SECTION_TITLES
from rtit.unit.parameters.page import render_parameters_page
from rtit.unit.parameters.table import (
    PARAMETER_TABLE,
    ParameterRow,
    Parameters,
    allowed_by_annotation,
)

SECTIONS = {*SECTION_TITLES, "33.2.7.2", "33.2.7.4", "33.3.3", "33.4.1"}
"""Sections of the chapter; most have a topic of scenarios."""


def test_table_has_every_field() -> None:
    assert [(row.name, row.default) for row in PARAMETER_TABLE] == [
        (field.name, field.default) for field in fields(Parameters)
    ]


@pytest.mark.parametrize("row", PARAMETER_TABLE, ids=lambda row: row.name)
def test_table_row_has_values_and_section(row: ParameterRow) -> None:
    """The default is a value; the sections are those of the chapter; both texts have the row."""
    row.values.check(row.name, row.default)
    for section in row.section.split(", "):
        assert section in SECTIONS, section
    assert re.fullmatch(r"[A-Z].*\.", row.reason), row.reason
    words = " ".join((Parameters.__doc__ or "").split())
    assert f" {row.name}: {row.values.words}; default " in words
    assert row.reason in words
    (item,) = (
        item
        for item in render_parameters_page().split("\n* ")
        if item.startswith(f"`{row.name}`: ")
    )
    item = " ".join(item.split())
    assert row.values.words in item
    assert row.reason in item


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tnt_form": "wide"}, "tnt_form is one of short, long, mixed, not 'wide'"),
        ({"psb_guard_pad": 2}, "psb_guard_pad is True or False, not 2"),
        ({"cyc_max_bytes": 1}, "cyc_max_bytes lies between 2 and 9, not 1"),
        ({"buffer_bytes": 255}, "buffer_bytes lies between 256 and 4294967296 or is 0, not 255"),
        ({"tnt_flush": 7}, "tnt_flush lies between 0 and 6, not 7"),
        (
            {"psb_extra": ("wake", "branch")},
            "psb_extra is one of enable, transfer, mov_cr3, wake, frequency, not 'branch'",
        ),
        (
            {"pebs_block_order": (4, 5)},
            "pebs_block_order has each of 0x4, 0x5, 0x1, 0x10, 0x8, 0x9, 0xa once, not 0x4, 0x5",
        ),
        (
            {"psb_plus_order": ("TSC", "PIP", "CBR", "MODE.TSX", "MODE.Exec")},
            "psb_plus_order has each of TSC, PIP, CBR, MODE.TSX, MODE.Exec, FUP once, and "
            "optionally VMCS, not TSC, PIP, CBR, MODE.TSX, MODE.Exec",
        ),
        ({"cyc_counter_bits": 20}, "a CYC of 3 bytes holds 19 bits, the cycle counter has 20"),
    ],
)
def test_error_names_parameter_legal_values_and_bad_value(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        Parameters(**wrong)


def test_position_of_vmcs_may_be_given_once() -> None:
    order = ("VMCS", "TSC", "PIP", "CBR", "MODE.TSX", "MODE.Exec", "FUP")
    assert Parameters(psb_plus_order=order).psb_plus_positions["VMCS"] == 0
    with pytest.raises(UsageError, match="psb_plus_order has each of"):
        Parameters(psb_plus_order=("VMCS", *order))


def test_annotation_without_values_is_rejected() -> None:
    with pytest.raises(TypeError, match="does not list its values"):
        allowed_by_annotation(int)
