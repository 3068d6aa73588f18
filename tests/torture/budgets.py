"""Runs commands on recordings with much of one kind of content, and prints what each took.

`python tests/torture/budgets.py --megabytes 2,50 --commands stat,info fork targets`. Kinds are
joined in equal shares: `fork+mmap+aux`; `sideband` is all kinds of records. For `elf-whole`,
the size is that of the code, for `dwarf-lines` that of the DWARF.

Prints the exit code, CPU seconds and peak megabytes of each command. The exit code is 1 if a
command was ended by a signal or took more than `--most` megabytes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from multiprocessing import Process
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

COMMANDS = {
    "packets": ["packets", "{}"],
    "instructions": ["instructions", "{}"],
    "blocks": ["blocks", "{}"],
    "branches": ["branches", "{}"],
    "edges": ["edges", "{}"],
    "events": ["events", "{}"],
    "report": ["report", "{}"],
    "report-json": ["report", "{}", "--json"],
    "stat": ["stat", "{}"],
    "info": ["info", "{}"],
    "profile": ["profile", "{}", "--for", "callgrind", "-o", "/dev/null"],
    "pprof": ["profile", "{}", "--for", "pprof", "-o", "/dev/null"],
    "coverage": ["coverage", "{}"],
    "lcov": ["coverage", "{}", "--format", "lcov"],
    "cobertura": ["coverage", "{}", "--format", "cobertura"],
    "diff": ["diff", "{}", "{}"],
    "lint": ["lint", "{}"],
    "pack": ["pack", "{}", "-o", "{}.zip"],
    "gdb": ["gdb", "{}", "--batch", "--ex", "info threads"],
}


def main() -> int:
    from support.oversized import PACKET_KINDS, RECORD_KINDS, write_oversized
    from support.oversized_elf import DWARF_KINDS, ELF_KINDS

    every = [*RECORD_KINDS, *PACKET_KINDS, *ELF_KINDS, *DWARF_KINDS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help=" ".join(every))
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--megabytes", default="2")
    parser.add_argument("--most", type=int, default=256)
    parser.add_argument("--seconds", type=int, default=600, help="of CPU time, for one command")
    arguments = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory(prefix="budgets-") as folder:
        for kind in arguments.kinds or every:
            for megabytes in arguments.megabytes.split(","):
                path = Path(folder) / f"{kind}.data"
                # A process of its own: a child inherits the peak of its parent's memory.
                size = int(float(megabytes) * 1e6)
                writer = Process(target=write_oversized, args=(Path(folder), kind, size))
                writer.start()
                writer.join()
                for command in arguments.commands.split(","):
                    code, seconds, peak = measure_command(command, path, arguments.seconds)
                    failed = code < 0 or peak > arguments.most
                    failures += failed
                    line = f"{kind:25}{megabytes:>5} MB  {command:13}{code:4}{seconds:8.1f} s"
                    print(f"{line}{peak:7} MB{'  !' * failed}", flush=True)
    return int(failures > 0)


def measure_command(command: str, path: Path, limit: int) -> tuple[int, float, int]:
    """Return exit code, CPU seconds and peak megabytes of a command.

    The peak is at least that of this process, which a fork passes on. `limit` is in CPU
    seconds.
    """
    words = [word.format(path) for word in COMMANDS[command]]
    limited = ["sh", "-c", f'ulimit -t {limit}; exec "$@"', "sh"]
    words = [*limited, sys.executable, "-m", "rtit", *words]
    null = subprocess.DEVNULL
    with subprocess.Popen(words, stdin=null, stdout=null, stderr=null) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
