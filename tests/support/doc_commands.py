"""The commands and the Python of README and docs, and `run_readme_commands`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def readme_commands() -> list[str]:
    """Return the commands after a prompt, in order."""
    lines = README.read_text().splitlines()
    return [line.removeprefix("    $ ") for line in lines if line.startswith("    $ ")]


def python_blocks(page: Path = README) -> list[str]:
    """Return the blocks of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def run_readme_commands(folder: Path, programs_in: Path) -> None:
    """Run every command in `folder`, with `rtit` and other programs from `programs_in`.

    Commands of perf and gdb are skipped if these are not installed. Raises AssertionError with the
    output of a command that fails.
    """
    shutil.copy("/bin/true", folder / "program")
    environment = {**os.environ, "PATH": f"{programs_in}:{os.environ['PATH']}"}
    for command in readme_commands():
        tool = command.removeprefix("rtit ").partition(" ")[0]
        if tool in ("perf", "gdb") and shutil.which(tool) is None:
            continue
        ended = subprocess.run(
            ["/bin/bash", "-o", "pipefail", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        # 141: SIGPIPE, the reader of a pipe has closed it
        assert ended.returncode in (0, 141), f"{command}\n{ended.stdout}{ended.stderr}"
        assert "Traceback" not in ended.stderr, command
