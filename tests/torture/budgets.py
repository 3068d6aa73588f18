"""Runs verbs on recordings that are much of one thing and prints what each took:
`python tests/torture/budgets.py --megabytes 2,50 --verbs stat,info fork targets`; of several
things, in equal shares: `fork+mmap+aux`, `sideband` is all kinds of records. Of those of code,
`elf-whole`, it is the code that has so many megabytes, of `dwarf-lines` the DWARF.

Of each verb the exit code, CPU seconds and megabytes at the peak. Exit code 1 if one was ended by a
signal or took more than `--most` megabytes.
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

VERBS = {
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
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--megabytes", default="2")
    parser.add_argument("--most", type=int, default=256)
    parser.add_argument("--seconds", type=int, default=600, help="of CPU time, for one verb")
    arguments = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="budgets-") as folder:
        for kind in arguments.kinds or every:
            for megabytes in arguments.megabytes.split(","):
                path = Path(folder) / f"{kind}.data"
                # A process of its own: a child inherits the peak of its parent's memory.
                size = int(float(megabytes) * 1e6)
                writer = Process(target=write_oversized, args=(Path(folder), kind, size))
                writer.start()
                writer.join()
                for verb in arguments.verbs.split(","):
                    code, seconds, most = run(verb, path, arguments.seconds)
                    bad = code < 0 or most > arguments.most
                    wrong += bad
                    what = f"{kind:25}{megabytes:>5} MB  {verb:13}{code:4}{seconds:8.1f} s"
                    print(f"{what}{most:7} MB{'  !' * bad}", flush=True)
    return int(wrong > 0)


def run(verb: str, path: Path, limit: int) -> tuple[int, float, int]:
    """The exit code, CPU seconds, megabytes: this process's own at least, fork passes them on. It
    is ended after `limit` CPU seconds.
    """
    words = [word.format(path) for word in VERBS[verb]]
    limited = ["sh", "-c", f'ulimit -t {limit}; exec "$@"', "sh"]
    command = [*limited, sys.executable, "-m", "rtit", *words]
    null = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=null, stdout=null, stderr=null) as it:
        _, status, used = os.wait4(it.pid, 0)
        it.returncode = os.waitstatus_to_exitcode(status)
    return it.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
