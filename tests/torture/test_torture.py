"""Nasty programs behave under a recorder as they do without, and what is decoded is what ran.

The quick ones; `python tests/torture/run.py` records all, random machine code, and kills recorders.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from programs.build import CannotBuildError
from rtit.capture.qemu import Found
from torture.cases import QUICK, Case, behaviour, cases, random_case
from torture.recorded import record


def named(mode: str) -> Case:
    try:
        return next(case for case in cases() if case.mode == mode)
    except CannotBuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if shutil.which("sh") is None:
        pytest.skip("no shell")
    return tmp_path


@pytest.mark.parametrize("mode", sorted(QUICK))
def test_by_single_steps(mode: str, folder: Path) -> None:
    case = named(mode)
    found = record(case.argv, "ptrace", folder)
    assert found.identical, found.verdict
    assert found.behaviour == behaviour(case.argv, folder), found.said


@pytest.mark.parametrize("mode", sorted(QUICK))
def test_under_qemu(mode: str, folder: Path, qemu: Found) -> None:
    case = named(mode)
    found = record(case.argv, "qemu", folder)
    assert found.identical, found.verdict
    assert found.behaviour == behaviour([str(qemu.qemu), *case.argv], folder), found.said


def test_every_quick_mode_exists() -> None:
    named("family")
    assert {case.mode for case in cases()} >= QUICK


@pytest.mark.parametrize("seed", [1, 2])
def test_random_machine_code(seed: int, folder: Path) -> None:
    named("family")
    found = record(random_case(seed, 8).argv, "ptrace", folder)
    assert found.identical, found.verdict
    assert found.behaviour.output == b"ran\n"


@pytest.mark.parametrize("seed", [1, 2, 3, 9])
def test_random_machine_code_under_qemu(seed: int, folder: Path, qemu: Found) -> None:
    """QEMU also runs what processors refuse: then the recorder says so."""
    named("family")
    found = record(random_case(seed, 8).argv, "qemu", folder)
    assert found.behaviour.output == b"ran\n"
    assert found.identical or found.alarmed, found.verdict
