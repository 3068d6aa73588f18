"""Records real programs, decodes them, and compares the decoded path with the executed one."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rtit.capture.qemu.installation import find_qemu

# options of record, program
RECORDINGS: tuple[tuple[list[str], list[str]], ...] = (
    (["--backend", "ptrace"], ["/bin/true"]),
    ([], ["/bin/echo", "hello"]),
    ([], ["/bin/sh", "-c", "echo one | cat"]),
)
# millions of instructions: not for single steps
LARGE: tuple[tuple[list[str], list[str]], ...] = (([], ["/bin/ls", "-lR", "/etc"]),)
RTIT = [sys.executable, "-m", "rtit"]


def rtit(*arguments: str, folder: Path, lines: int | None = None) -> int:
    """Run one command; print the command and the first lines of its output."""
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
    """Record, report and verify each program; return 1 if a decoded path is not the executed
    one.
    """
    failed = 0
    recordings = RECORDINGS + (LARGE if not isinstance(find_qemu(), str) else ())
    with tempfile.TemporaryDirectory(prefix="rtit-demo-") as name:
        folder = Path(name)
        for index, (options, program) in enumerate(recordings):
            data, truth = f"{index}.data", f"{index}.truth"
            command = ["record", *options, "-o", data, "--truth", truth, "--", *program]
            rtit(*command, folder=folder, lines=8)
            if index == 1:
                rtit("report", data, folder=folder)
                rtit("packets", data, folder=folder, lines=12)
                rtit("instructions", data, "--fields", "ip,time,sym,asm", folder=folder, lines=12)
            failed += rtit("verify", data, "--truth", truth, folder=folder) != 0
    print(f"{len(recordings) - failed} of {len(recordings)} recordings decode to exactly what ran")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
