"""The main job, shown: record real programs, decode them, and compare what was decoded with what
ran.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = (
    ["/bin/true"],
    ["/bin/echo", "hello"],
    ["/bin/sh", "-c", "echo one | cat"],
)
RTIT = [sys.executable, "-m", "rtit"]


def rtit(*arguments: str, folder: Path, lines: int | None = None) -> int:
    """Run one command as a user would, showing the command and (the first lines of) what it
    prints.
    """
    print(f"$ rtit {shlex.join(arguments)}", flush=True)
    ended = subprocess.run(
        [*RTIT, *arguments], cwd=folder, stdout=subprocess.PIPE, text=True, check=False
    )
    shown = ended.stdout.splitlines()
    for line in shown[:lines]:
        print(line)
    if lines is not None and len(shown) > lines:
        print("...")
    print(flush=True)
    return ended.returncode


def main() -> int:
    """Record, report and verify each program; 1 if a decoded path is not the executed one."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="rtit-demo-") as name:
        folder = Path(name)
        for index, program in enumerate(PROGRAMS):
            data, truth = f"{index}.data", f"{index}.truth"
            rtit("record", "-o", data, "--truth", truth, "--", *program, folder=folder)
            if index == 1:
                rtit("report", data, folder=folder)
                rtit("packets", data, folder=folder, lines=12)
                rtit("instructions", data, "--fields", "ip,time,sym,asm", folder=folder, lines=12)
            failed += rtit("verify", data, "--truth", truth, folder=folder) != 0
    print(f"{len(PROGRAMS) - failed} of {len(PROGRAMS)} recordings decode to exactly what ran")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
