"""The commands of the README, and a place where they run as a reader would run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


def commands() -> list[str]:
    """What stands behind a prompt, in order."""
    lines = README.read_text().splitlines()
    return [line.removeprefix("    $ ") for line in lines if line.startswith("    $ ")]


def programs(page: Path = README) -> list[str]:
    """The Python that it shows."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def run_all(folder: Path, programs_in: Path) -> None:
    """Run every command in `folder`, with `rtit` and perhaps others from `programs_in`.

    Those of perf and gdb are left out where these are not installed. Raises AssertionError with
    what was printed for one that fails.
    """
    shutil.copy("/bin/true", folder / "program")
    environment = {**os.environ, "PATH": f"{programs_in}:{os.environ['PATH']}"}
    for command in commands():
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
        # 141: the reader of a pipe had enough
        assert ended.returncode in (0, 141), f"{command}\n{ended.stdout}{ended.stderr}"
        assert "Traceback" not in ended.stderr, command
