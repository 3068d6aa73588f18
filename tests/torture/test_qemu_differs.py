"""Where plain QEMU does not do what the kernel does: it does not, and the page says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from programs.build import CannotBuildError
from rtit.capture.qemu.installation import QemuInstallation
from torture.cases import (
    BETTER_THAN_QEMU,
    BY_THE_PROCESSOR,
    QEMU_DIFFERS,
    Case,
    behaviour,
    cases,
)
from torture.recorded import record

PAGE = Path(__file__).parents[2] / "docs" / "qemu.md"
TRIED = "7.2"


def rows() -> dict[str, tuple[bool, str]]:
    """Of each program of the page whether the recorder tells, and what is different."""
    found = {}
    for names, mark, text in re.findall(
        r"^\| (\w[\w, ]*?)( \*)? \| (.*) \|$", PAGE.read_text(), re.M
    ):
        for name in names.split(", "):
            found[name] = bool(mark), text
    found.pop("program")
    return found


def named(mode: str) -> Case:
    try:
        return next(case for case in cases() if case.mode == mode)
    except CannotBuildError as error:
        pytest.skip(str(error))


def test_the_page_has_them_all() -> None:
    assert {name: text for name, (_, text) in rows().items()} == QEMU_DIFFERS


@pytest.mark.parametrize("mode", sorted(QEMU_DIFFERS | BETTER_THAN_QEMU))
def test_plain_qemu(mode: str, qemu: QemuInstallation, tmp_path: Path) -> None:
    if not qemu.version.startswith(TRIED):
        pytest.skip(f"the page is about {TRIED}, this is {qemu.version}")
    case = named(mode)
    by_itself = behaviour(case.argv, tmp_path)
    if mode in BY_THE_PROCESSOR and behaviour([str(qemu.qemu), *case.argv], tmp_path) == by_itself:
        pytest.skip("this processor does as QEMU does")
    assert behaviour([str(qemu.qemu), *case.argv], tmp_path) != by_itself


@pytest.mark.parametrize("mode", sorted(QEMU_DIFFERS))
def test_the_recorder_tells(mode: str, qemu: QemuInstallation, tmp_path: Path) -> None:
    case = named(mode)
    found = record(case.argv, "qemu", tmp_path)
    assert found.identical, found.verdict
    assert found.said.count("QEMU") == rows()[mode][0], found.said
