"""Time of commands with a minimal recording: the cost of starting.

`PYTHONPATH=python .venv/bin/python bench/starting.py [--repetitions N] [--only COMMAND ...]`
records `true` and prints a table, beside `python -c pass` and `python -c "import numpy"`, and
leaves it in bench/results (not with --only). Each round runs every command once, with compiled
Python files; the table has medians.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import clock
import report

RESULTS = Path(__file__).resolve().parent / "results"
MAIN = "import sys; from rtit.cli.main import main; sys.exit(main())"
"""The body of the installed command."""
PROGRAM = "/bin/true"


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the command lines to measure, as arguments of Python."""
    data, truth, out = (str(folder / name) for name in ("perf.data", "truth", "out"))
    command_lines: list[list[str]] = [
        ["--help"],
        ["report", "--help"],
        ["info", data],
        ["report", data],
        ["packets", data],
        ["instructions", data],
        ["blocks", data],
        ["branches", data],
        ["edges", data],
        ["events", data],
        ["lint", data],
        ["stat", data],
        ["diff", data, data],
        ["coverage", data],
        ["profile", "--for", "callgrind", "-o", out, data],
        ["verify", "--truth", truth, data],
        ["msr", "IA32_RTIT_CTL", "0x2401"],
        ["scenario", "table_33_10_begin"],
        ["record", "-q", "-o", out, "--", PROGRAM],
        ["stat", "-o", out, "--", PROGRAM],
    ]
    found = {
        "`python -c pass`": ["-c", "pass"],
        '`python -c "import numpy"`': ["-c", "import numpy"],
        '`python -c "import rtit"`': ["-c", "import rtit"],
    }
    for words in command_lines:
        told = [word.removeprefix(f"{folder}/") for word in words]
        found[f"`rtit {' '.join(told)}`"] = ["-c", MAIN, *words]
    return found


def run(arguments: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return wall and CPU seconds of a command. Raises RuntimeError if it fails."""
    usage = clock.process_usage([sys.executable, *arguments], environment)
    return usage.wall, usage.cpu


def measure_commands(folder: Path, repetitions: int, only: Sequence[str]) -> list[list[str]]:
    """Return a row for each command: milliseconds from start to end, and of CPU."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    data, truth = str(folder / "perf.data"), str(folder / "truth")
    record = ["-c", MAIN, "record", "-q", "-o", data, "--truth", truth, "--", PROGRAM]
    run(record, environment)
    wanted = {
        name: words
        for name, words in commands(folder).items()
        if not only or any(each in words for each in only)
    }
    for words in wanted.values():
        run(words, environment)  # compiles
    found = clock.alternate(
        repetitions,
        {name: functools.partial(run, words, environment) for name, words in wanted.items()},
    )
    rows = []
    for name, times in found.items():
        medians = [statistics.median(each) * 1e3 for each in zip(*times, strict=True)]
        rows.append([name, *(f"{each:.0f}" for each in medians)])
    return rows


def main() -> None:
    """Measure, print, and save the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=21, metavar="N")
    parser.add_argument("--only", nargs="+", default=[], metavar="COMMAND")
    arguments = parser.parse_args()
    load = clock.load()
    with tempfile.TemporaryDirectory(prefix="rtit-bench-") as folder:
        rows = measure_commands(Path(folder), arguments.repetitions, arguments.only)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    lines = [
        f"# Starting, {today}",
        "",
        f"{clock.conditions(load)} Medians of {arguments.repetitions}. The recording is one of "
        f"`{PROGRAM}`; `record` and "
        "`stat --` run it, too.",
        "",
        *report.table(["command", "ms", "CPU ms"], rows),
    ]
    text = report.join_lines(lines)
    print(text)
    if not arguments.only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{today}-starting.md").write_text(text)


if __name__ == "__main__":
    main()
