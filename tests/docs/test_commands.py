"""Every command of README and docs runs."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from rtit.cli.commands import COMMANDS
from support.doc_commands import (
    PAGES,
    ROOT,
    add_examples,
    console_blocks,
    install_rtit,
    run_commands,
)

WITH_COMMANDS = [page for page in PAGES if any(console_blocks(page))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_page_succeed(page: Path, tmp_path: Path) -> None:
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("recording needs Linux, and the examples a C compiler")
    folder = tmp_path / "work"
    folder.mkdir()
    add_examples(folder)
    run_commands(page, folder, install_rtit(tmp_path))


def test_every_command_is_run() -> None:
    blocks = [block for page in PAGES for block in console_blocks(page)]
    shown = "\n".join(command for block in blocks for command in block)
    for name in COMMANDS:
        assert re.search(rf"\brtit {name}\b", shown), name
