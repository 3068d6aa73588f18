"""Counting the instructions of a program: `rtit stat`, QEMU alone, and valgrind's counters."""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import clock
import recording


def measure_counting(folder: Path, repetitions: int) -> list[dict[str, Any]]:
    """Return CPU seconds (user and system) of each command, run alternately; no rows without a
    QEMU.

    A row has {"what", "instructions", "native", "qemu", "empty", "stat", "cachegrind",
    "callgrind"}; missing commands have None. `stat` includes the start of Python.
    """
    import rtit
    from rtit.capture.qemu.installation import find_qemu

    found = find_qemu()
    if isinstance(found, str):
        print(f"without QEMU: {found}")
        return []
    commands: dict[str, Sequence[str | Path] | None] = {
        "native": [],
        "qemu": [found.qemu],
        "empty": _empty(found.qemu, folder),
        "stat": [sys.executable, "-m", "rtit", "stat", "-o", "/dev/null", "--"],
        "cachegrind": _valgrind("--tool=cachegrind", "--cache-sim=no", "cachegrind"),
        "callgrind": _valgrind("--tool=callgrind", "callgrind"),
    }
    rows = []
    for what, command in recording.installed_programs(folder).items():
        measured = clock.alternate(
            repetitions,
            {
                name: functools.partial(clock.process_cpu, [*before, *command])
                for name, before in commands.items()
                if before is not None
            },
        )
        medians = {
            name: statistics.median(measured[name]) if name in measured else None
            for name in commands
        }
        ran = rtit.stat([os.fspath(word) for word in command]).stat.counts["instructions"]
        rows.append({"what": what, "instructions": ran, **medians})
    return rows


def _empty(qemu: Path, folder: Path) -> list[str | Path] | None:
    plugin = recording.empty_plugin(qemu, folder)
    return None if plugin is None else [qemu, "-plugin", plugin]


def _valgrind(*options: str) -> list[str | Path] | None:
    *tool, name = options
    if shutil.which("valgrind") is None:
        return None
    return ["valgrind", "-q", *tool, f"--{name}-out-file=/dev/null"]
