"""Runs callgrind, and reads the files that it writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

Costs = tuple[Counter[int], Counter[tuple[int, int]], Counter[tuple[int, int]]]


def inclusive_by_function(text: str) -> Counter[int]:
    """Return the inclusive costs that `callgrind_annotate` and KCachegrind show, by entry: the sums
    of the costs of all calls. Functions named function'2 are left out.
    """
    names: dict[str, str] = {}
    found: Counter[int] = Counter()
    called: int | None = None
    name = ""
    for line in text.splitlines():
        words = line.split()
        if match := re.match(r"c?fn=(\(\d+\))(.*)", line):
            name = names.setdefault(match[1], match[2])
        elif line.startswith("calls="):
            called = int(words[1], 16)
        elif line.startswith("0x") and called is not None:
            if not name.endswith("'2"):
                found[called] += int(words[2])
            called = None
    return found


def read_costs(text: str) -> Costs:
    """Read a callgrind file: counts of instructions, and calls between instructions with number and
    inclusive cost.
    """
    own: Counter[int] = Counter()
    calls: Counter[tuple[int, int]] = Counter()
    inclusive: Counter[tuple[int, int]] = Counter()
    called: int | None = None
    jump = False
    for line in text.splitlines():
        words = line.split()
        if line.startswith(("jump=", "jcnd=")):
            jump = True
        elif line.startswith("calls="):
            called = int(words[1], 16)
            count = int(words[0].partition("=")[2])
        elif re.match("0x", line):
            at = int(words[0], 16)
            if called is not None:
                calls[at, called] += count
                inclusive[at, called] += int(words[2])
            elif not jump:
                own[at] += int(words[2])
            called, jump = None, False
    return own, calls, inclusive


def run_callgrind(program: Path, folder: Path, *options: str) -> Path:
    """Return the profile that callgrind writes."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("valgrind is not installed")
    profile = folder / "theirs"
    words = ["--tool=callgrind", *options, f"--callgrind-out-file={profile}", str(program)]
    subprocess.run([valgrind, *words], capture_output=True, check=False, timeout=300)
    return profile
