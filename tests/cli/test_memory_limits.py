"""A command takes at most 256 MB; with two recordings, the code of the second one in
addition.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.oversized import CODE_SIZE, write_oversized
from torture.budgets import COMMANDS

MEGABYTES = 256
MEGABYTES_OF_CODE = 64 + CODE_SIZE // 1_000_000
"""Megabytes for the code of a recording and for the decoder's cache of it."""

PEAK_MEMORY_SCRIPT = """
import sys
from pathlib import Path
from rtit.cli.main import main

main()
# not ru_maxrss, which begins with what the parent had
words = Path("/proc/self/status").read_text().split()
print(words[words.index("VmHWM:") + 1], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def ever_new_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_oversized(tmp_path_factory.mktemp("targets"), "targets", 12_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["profile", "diff", "report", "edges"])
def test_recording_of_ever_new_code_stays_within_the_memory_limit(
    command: str, ever_new_code: Path
) -> None:
    """Each packet leads to an address that has not run before, and adds an edge."""
    words = [
        sys.executable,
        "-c",
        PEAK_MEMORY_SCRIPT,
        *(word.format(ever_new_code) for word in COMMANDS[command]),
    ]
    done = subprocess.run(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True
    )
    megabytes = int(done.stderr.splitlines()[-1]) // 1024
    assert megabytes <= MEGABYTES + MEGABYTES_OF_CODE * (command == "diff")
