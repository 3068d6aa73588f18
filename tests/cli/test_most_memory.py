"""A whole command takes no more than 256 MB; with two recordings, beside the code of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.oversized import CODE_SIZE, write_oversized
from torture.budgets import VERBS

MOST = 256
CODE = 64 + CODE_SIZE // 1_000_000
"""Megabytes of a recording's code, and of what is kept of it."""

TAKES = """
import sys
from pathlib import Path
from rtit.cli.main import main

main()
# not ru_maxrss, which begins with what the parent had
words = Path("/proc/self/status").read_text().split()
print(words[words.index("VmHWM:") + 1], file=sys.stderr)
"""


@pytest.mark.parametrize("verb", ["profile", "report", "edges", "diff"])
def test_of_new_places_without_end(verb: str, tmp_path: Path) -> None:
    """Each packet is a place that has not run before, and an edge."""
    path = write_oversized(tmp_path, "targets", 12_000_000)
    words = [sys.executable, "-c", TAKES, *(word.format(path) for word in VERBS[verb])]
    done = subprocess.run(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True
    )
    megabytes = int(done.stderr.splitlines()[-1]) // 1024
    assert megabytes <= MOST + CODE * (verb == "diff")
