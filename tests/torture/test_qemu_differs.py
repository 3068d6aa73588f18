"""Differences between plain QEMU and the kernel are as the documentation page lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from programs.build import CannotBuildError
from rtit.capture.qemu.installation import QemuInstallation
from torture.cases import (
    BETTER_THAN_QEMU,
    QEMU_DIFFERS,
    SAME_ON_SOME_PROCESSORS,
    Case,
    all_cases,
    run_program,
)
from torture.recording import record_and_verify

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "qemu.md"
DOCUMENTED_VERSION = "7.2"


def documented_differences() -> dict[str, tuple[bool, str]]:
    """Return by program whether the recorder reports the difference, and what it is."""
    found = {}
    for names, differs, text in re.findall(
        r"^\| (\w[\w, ]*?)( \*)? \| ([^|]*) \|$", PAGE.read_text(), re.M
    ):
        for name in names.split(", "):
            found[name] = bool(differs), text
    found.pop("program")
    return found


def case_of_mode(mode: str) -> Case:
    try:
        return next(case for case in all_cases() if case.mode == mode)
    except CannotBuildError as error:
        pytest.skip(str(error))


def test_page_documents_every_difference() -> None:
    assert {name: text for name, (_, text) in documented_differences().items()} == QEMU_DIFFERS


@pytest.mark.parametrize("mode", sorted(QEMU_DIFFERS | BETTER_THAN_QEMU))
def test_plain_qemu_differs_from_the_kernel(
    mode: str, qemu: QemuInstallation, tmp_path: Path
) -> None:
    if not qemu.version.startswith(DOCUMENTED_VERSION):
        pytest.skip(f"the page is about {DOCUMENTED_VERSION}, this is {qemu.version}")
    case = case_of_mode(mode)
    native = run_program(case.argv, tmp_path)
    if (
        mode in SAME_ON_SOME_PROCESSORS
        and run_program([str(qemu.qemu), *case.argv], tmp_path) == native
    ):
        pytest.skip("this processor does as QEMU does")
    # By chance, a signal goes to the right thread.
    attempts = (run_program([str(qemu.qemu), *case.argv], tmp_path) for _ in range(4))
    assert any(each != native for each in attempts)


@pytest.mark.parametrize("mode", sorted(QEMU_DIFFERS))
def test_recorder_reports_the_documented_differences(
    mode: str, qemu: QemuInstallation, tmp_path: Path
) -> None:
    case = case_of_mode(mode)
    found = record_and_verify(case.argv, "qemu", tmp_path)
    assert found.is_identical, found.verdict
    assert found.messages.count("QEMU") == documented_differences()[mode][0], found.messages
