"""Every command of README and docs runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.doc_commands import (
    PAGES,
    ROOT,
    add_examples,
    console_blocks,
    install_rtit,
    run_commands,
)

WITH_COMMANDS = [
    pytest.param(
        page,
        id=str(page.relative_to(ROOT)),
        marks=[pytest.mark.slow] if page.parent.name == "howto" else [],
    )
    for page in PAGES
    if any(console_blocks(page))
]


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_of_page_succeed(page: Path, tmp_path: Path) -> None:
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("recording needs Linux, and the examples a C compiler")
    folder = tmp_path / "work"
    folder.mkdir()
    add_examples(folder)
    run_commands(page, folder, install_rtit(tmp_path))


def command_names() -> set[str]:
    """Return the names of the commands that `rtit --help` lists."""
    command = [sys.executable, "-m", "rtit", "--help"]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"^ +([a-z]+)  +\S", usage, re.MULTILINE))
    assert {"record", "report", "cpuid"} <= names
    return names


def test_every_command_occurs_in_a_tested_page() -> None:
    names = command_names() - {"completion"}
    blocks = [block for page in PAGES for block in console_blocks(page)]
    shown = "\n".join(command for block in blocks for command in block)
    for name in names:
        assert re.search(rf"\brtit {name}\b", shown), name


def test_reference_page_describes_every_command() -> None:
    reference = (ROOT / "docs" / "reference" / "commands.md").read_text().splitlines()
    assert command_names() - {"help"} <= set(reference)
