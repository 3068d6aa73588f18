"""Edges and profiles: rtit, and perf2bolt with `perf script`, BOLT's input without LBR."""

from __future__ import annotations

import functools
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import clock
import recording
from support.profiles import LLVM_FOLDERS

TIMES = 400
"""Iterations of the workload: some seconds for perf."""


def measure_profiles(program: Path, folder: Path, repetitions: int) -> dict[str, Any]:
    """Return CPU seconds (user and system) of each command from one recording to counts, run
    alternately.

    The result is {"bytes", "instructions", "rows"}; a row has {"what", "counts", "seconds",
    "ratio"}: the kind of counts, and the time as a multiple of `rtit edges`; seconds are None for a
    missing command. Those of rtit include the start of Python.
    """
    from rtit.trace import Trace

    data, aggregated = folder / "profiles.data", folder / "aggregated"
    recording.record([program, str(TIMES)], data)
    with Trace(data) as trace:
        size = sum(stream.size for stream in trace.streams)
        instructions = sum(stream.counts().instructions for stream in trace.streams)
    rtit: list[str | Path] = [sys.executable, "-m", "rtit"]
    bolt = [*rtit, "profile", "--for", "bolt", "-o", aggregated, data]
    clock.process_cpu(bolt)  # read by the last way
    stacks = "--itrace=i1000il16"
    exact, sampled = "every instruction and edge", "16 branches of each 1,000 instructions"
    commands: list[tuple[str, str, Sequence[str | Path] | None]] = [
        ("rtit edges", "every edge", [*rtit, "edges", data]),
        ("rtit profile --for bolt", exact, bolt),
        (
            "rtit profile --for llvm",
            exact,
            [*rtit, "profile", "--for", "llvm", "-o", folder / "llvm", data],
        ),
        (
            "perf2bolt --pa of rtit's profile",
            exact,
            _bolt("--pa", "-p", aggregated, "-o", folder / "a.fdata", program),
        ),
        (
            f"perf script {stacks} -F ip,brstack",
            sampled,
            _perf("script", "-i", data, stacks, "-F", "ip,brstack"),
        ),
        (
            f"perf2bolt {stacks}, which runs perf script",
            sampled,
            _bolt(stacks, "-p", data, "-o", folder / "b.fdata", program),
        ),
        (
            "perf script --itrace=b -F ip,addr",
            "every branch, in its order",
            _perf("script", "-i", data, "--itrace=b", "-F", "ip,addr"),
        ),
    ]
    measured = clock.alternate(
        repetitions,
        {
            what: functools.partial(clock.process_cpu, command)
            for what, _, command in commands
            if command is not None
        },
    )
    medians = {what: statistics.median(all_) for what, all_ in measured.items()}
    first = medians[commands[0][0]]
    rows = []
    for what, counts, _ in commands:
        seconds = medians.get(what)
        ratio = seconds / first if seconds is not None else None
        rows.append({"what": what, "counts": counts, "seconds": seconds, "ratio": ratio})
    return {"bytes": size, "instructions": instructions, "rows": rows}


def _bolt(*words: str | Path) -> list[str | Path] | None:
    found = [place / "perf2bolt" for place in LLVM_FOLDERS if (place / "perf2bolt").exists()]
    return [found[0], *words] if found and shutil.which("perf") else None


def _perf(*words: str | Path) -> list[str | Path] | None:
    return ["perf", *words] if shutil.which("perf") else None
