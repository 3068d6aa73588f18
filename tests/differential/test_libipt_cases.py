"""The libipt harness lists what libipt's own printer lists for its cases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from differential.oracles import libipt
from differential.oracles.raw import Section

# A preceding "? " denotes an instruction of a transaction.
IP = re.compile(r"(?:\? )?([0-9a-f]{16})")
ERROR = re.compile(r"\[([0-9a-f]+), [0-9a-f]+: error: (.*)\]")
MESSAGES = {"no memory mapped at this address": "nomap"}
# Event trace, trigger packets and JMPABS came to libipt after the version that is common now.
NOT_IN_THIS_LIBIPT = ("ptet-", "trig", "jmpabs")


def cases(traces: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((traces / "libipt-cases" / "index.json").read_text())
    return found


def default_run(case: dict[str, Any]) -> dict[str, Any] | None:
    """Return the instruction listing of a case without special options."""
    for run in case["runs"]:
        if run["level"] == "instructions" and run["options"] in ([], ["--event:ip"]):
            return dict(run)
    return None


def test_harness_lists_the_instructions_of_libipt_cases(traces: Path) -> None:
    try:
        libipt.harness()
    except libipt.LibiptMissingError as error:
        pytest.skip(str(error))
    folder = traces / "libipt-cases"
    compared = 0
    for case in cases(traces):
        name = case["name"]
        run = default_run(case)
        if run is None or any(word in name for word in NOT_IN_THIS_LIBIPT):
            continue
        code = folder / f"{name}.bin"
        size = code.stat().st_size
        sections = [Section(code, 0, size, int(case["image_base"], 16))] if size else []
        expected = (folder / run["expected"]).read_text().splitlines()
        ips = [int(match[1], 16) for line in expected if (match := IP.fullmatch(line))]
        errors = [
            (MESSAGES.get(match[2], match[2]), int(match[1], 16))
            for line in expected
            if (match := ERROR.fullmatch(line))
        ]
        decoded = libipt.decode((folder / f"{name}.pt").read_bytes(), sections, cpu(run))
        assert decoded.ips == ips, name
        assert [(error, offset) for error, offset, _ in decoded.errors] == errors, name
        compared += 1
    assert compared > 50


def cpu(run: dict[str, Any]) -> tuple[int, int, int] | None:
    model = run["cpus"][0]
    if model is None:
        return None
    family, number = model.split("/")[:2]
    return int(family), int(number), 0
