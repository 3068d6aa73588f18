"""Comparison with other decoders of PT to a fuzzer's bitmap: iptr and ptcov, from crates.io.

`PYTHONPATH=python:bench:tests .venv/bin/python bench/peers.py` builds bench/peers (with the
network, once), records `ls -l` and the programs of workloads.py without RET compression,
which iptr does not know, and measures traces of several lengths. Prints tables of CPU times, and
leaves them in bench/results.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import clock
import replicate
import report
import short
import workloads
from differential.oracles import raw

CRATE = Path(__file__).resolve().parent / "peers"
RESULTS = CRATE.parent / "results"
LS = "ls -l"
OTHER = ["ls", "-l", "/usr/sbin"]
"""Another input of `LS`; the second trace of other programs is the next part of the recording."""
SIZES = (4 << 10, 16 << 10, 256 << 10, 2 << 20)
REPETITIONS = 9
AGAIN = 8
"""Minimum number of runs in the mean "again": one for each `PER_RUN` bytes."""
PER_RUN = 2 << 20
DECODERS = "rtit,iptr,ptcov"
EVENT = "intel_pt/noretcomp/u"


def program_path() -> Path:
    """Build the program in bench/peers, and return its path. Raises CalledProcessError."""
    manifest = str(CRATE / "Cargo.toml")
    subprocess.run(
        ["cargo", "build", "--release", "--quiet", "--manifest-path", manifest], check=True
    )
    return CRATE / "target" / "release" / "peers"


def command_line(
    decoders: str,
    trace: Path,
    other: Path,
    rounds: int,
    runs_again: int,
    sections: Sequence[raw.Section],
) -> list[str | Path]:
    """Return the command that decodes `trace` and then `other` with each of the decoders."""
    code = [f"{section.path}@{section.address:x}" for section in sections]
    numbers = [str(rounds), str(runs_again)]
    return [program_path(), decoders, trace, other, *numbers, *code]


def measure_decoders(
    folder: Path, data: bytes, other: bytes | None, sections: Sequence[raw.Section]
) -> list[list[str]]:
    """Return rows: bytes of the trace, decoder, microseconds of the first run, of later runs and of
    the other trace, MB/s of later runs; or the reason of a failure. Raises CalledProcessError if a
    program fails.
    """
    trace, second = folder / "trace", folder / "other"
    rows = []
    for size in SIZES:
        trace.write_bytes(short.whole_packets(data, size))
        begin = data.find(replicate.PSB, size)
        follows = data[begin:] if begin >= 0 else data
        second.write_bytes(short.whole_packets(follows if other is None else other, size))
        again = max(AGAIN, PER_RUN // size)
        command = command_line(DECODERS, trace, second, REPETITIONS, again, sections)
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows += [row(trace.stat().st_size, line) for line in found.stdout.splitlines()]
    return rows


def row(size: int, line: str) -> list[str]:
    """Return the row of a line that the program printed."""
    name, first, *rest = line.split()
    if first == "cannot:":
        return [f"{size:,}", name, " ".join(rest), "", "", ""]
    times = [int(each) / 1e3 for each in (first, *rest)]
    cells = []
    for low, middle, high in (times[0:3], times[3:6], times[6:9]):
        cells.append(f"{middle:,.0f} ({low:,.0f} to {high:,.0f})")
    return [f"{size:,}", name, *cells, f"{size / times[4]:,.0f}"]


def measure_all_programs(folder: Path) -> list[str]:
    """Return the tables of all programs."""
    commands: dict[str, Sequence[str | Path]] = {LS: ["ls", "-l", "/usr/bin"]}
    commands |= workloads.installed_programs(folder)
    lines = []
    size = int(1.5 * SIZES[-1])
    for name, command in commands.items():
        other = None
        if name == LS:
            other = workloads.record_stream_part(folder, OTHER, EVENT, size).pt
        piece = workloads.record_stream_part(folder, command, EVENT, size)
        head = ["bytes", "decoder", "first, us", "again, us", "another, us", "again, MB/s"]
        lines += [
            "",
            f"## {name}",
            "",
            *report.table(head, measure_decoders(folder, piece.pt, other, piece.sections)),
        ]
    return lines


def main() -> None:
    """Measure, print, and save the result."""
    with tempfile.TemporaryDirectory(prefix="rtit-bench-") as folder:
        load = clock.load()
        tables = measure_all_programs(Path(folder))
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    lines = [
        f"# Bitmaps of short traces, {today}",
        "",
        f"{clock.conditions(load)} CPU time, medians of {REPETITIONS}, and the "
        "quartiles; decoders run alternately. The beginnings of what programs do under "
        "QEMU, without RET compression and with MTCs, into a bitmap of 64 KB. "
        f"First: a new decoder; again: the mean of the next {AGAIN} runs or more of that decoder; "
        f"another: that decoder's first run of `{' '.join(OTHER)}`, or of what follows the trace.",
        "",
        "What limits ours: decoding code in the first run, packets of system calls in the next.",
        *tables,
    ]
    text = report.join_lines(lines)
    (RESULTS / f"{today}-peers.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
