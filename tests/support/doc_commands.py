"""The commands and the Python of README and docs, and a folder in which they run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from support.griffin import BUFFER, HEAD, PAGE, THREAD, XPAGE, log_item

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))
OTHERS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")
TEXTS = (*PAGES, *(ROOT / name for name in OTHERS))

_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)$", re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_EXIT_CODE = re.compile(r"#.*\bexit code (\d+)$")
_NOT_RUN = ("pip", "python3", "sudo")
"""Commands that would change the machine."""
_SIGPIPE = 141


def console_blocks(page: Path) -> list[list[str]]:
    """Return the commands of each console block: the lines after the prompt `$`, with the lines
    after the prompt `>` that continue them.
    """
    blocks = _CONSOLE.findall(page.read_text())
    return [
        [command.replace("\n> ", "\n") for command in _COMMAND.findall(block)] for block in blocks
    ]


def python_blocks(page: Path) -> list[str]:
    """Return the blocks of Python of a page."""
    return _PYTHON.findall(page.read_text())


def install_rtit(folder: Path) -> Path:
    """Return a folder with a script `rtit` that runs the package under test."""
    script = folder / "bin" / "rtit"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m rtit "$@"\n')
    script.chmod(0o755)
    return script.parent


def add_examples(folder: Path) -> None:
    """Put the files that the pages assume into `folder`: sources, `program`, code, raw PT, and a
    log of Griffin.
    """
    for source in (ROOT / "docs" / "examples").iterdir():
        shutil.copy(source, folder)
    subprocess.run(["cc", "-g", "-O2", "-o", "program", "program.c"], cwd=folder, check=True)
    (folder / "code.bin").write_bytes(bytes.fromhex("740e"))
    command = [sys.executable, "-m", "rtit", "scenario", "--raw", "pt.bin", "table_33_10_begin"]
    subprocess.run(command, cwd=folder, check=True)
    packets = (folder / "pt.bin").read_bytes()
    page = bytes.fromhex("740e").ljust(PAGE, b"\x90")
    log = HEAD + log_item(XPAGE, 5, 0x1000, PAGE, data=page) + log_item(THREAD, 5, 5)
    log += log_item(BUFFER, 5, 5, 0, len(packets), data=packets)
    (folder / "griffin.log").write_bytes(log)


def run_commands(page: Path, folder: Path, programs_in: Path) -> None:
    """Run the commands of a page in `folder`, with `rtit` from `programs_in`.

    A missing program skips the rest of its block. A command must return 0, or the code that its
    comment states at the end ("exit code 1"). Raises AssertionError with the output of a command
    that fails.
    """
    environment = {**os.environ, "PATH": f"{programs_in}:{os.environ['PATH']}"}
    for block in console_blocks(page):
        for command in block:
            if command.split()[0] in _NOT_RUN:
                continue
            if not _has_programs(command):
                break
            ended = subprocess.run(
                ["/bin/bash", "-o", "pipefail", "-c", command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=300,
            )
            stated = _EXIT_CODE.search(command)
            allowed = {int(stated[1])} if stated else {0, _SIGPIPE}
            assert ended.returncode in allowed, f"{command}\n{ended.stdout}{ended.stderr}"
            assert "Traceback" not in ended.stderr, command


def _has_programs(command: str) -> bool:
    """Return whether the program of a command is installed, and what the command of rtit needs."""
    words = command.split()
    if words[:2] in (["rtit", "query"], ["rtit", "export"]):
        return find_spec("duckdb") is not None
    name = "gdb" if words[:2] == ["rtit", "gdb"] else words[0]
    return name in ("rtit", "export") or name.startswith("./") or shutil.which(name) is not None
