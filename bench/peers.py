"""Others that make a fuzzer's bitmap of PT, beside ours: iptr and ptcov, from crates.io.

`PYTHONPATH=python:bench:tests .venv/bin/python bench/peers.py` builds bench/peers (with the
network, once), records a program without RET compression, which iptr does not know, and measures
traces of several lengths. Prints a table of CPU times, and leaves it in bench/results.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import clock
import replicate
import report
import short

CRATE = Path(__file__).resolve().parent / "peers"
RESULTS = CRATE.parent / "results"
PROGRAM = ["ls", "-l", "/usr/bin"]
SIZES = (4 << 10, 16 << 10, 256 << 10, 2 << 20)
REPETITIONS = 21


def measured(folder: Path) -> list[list[str]]:
    """Rows: bytes of the trace, decoder, microseconds of the first run and again, MB/s again; or
    why it could not. Raises CalledProcessError if a program cannot be run.
    """
    import rtit

    recording = folder / "perf.data"
    record = ["record", "-q", "-e", "intel_pt/noretcomp/u", "-o", str(recording), "--", *PROGRAM]
    subprocess.run([sys.executable, "-m", "rtit", *record], stdout=subprocess.DEVNULL, check=True)
    build = ["cargo", "run", "--release", "--quiet", "--manifest-path", str(CRATE / "Cargo.toml")]
    rows = []
    with rtit.Trace(recording) as trace:
        (stream,) = [stream for stream in trace.streams if stream.size]
        data = replicate.from_psb(stream.read())
        image = trace.images.image(stream.tid)
        code = []
        for number, mapping in enumerate(image.mappings):
            part = folder / f"code{number}"
            part.write_bytes(image.read(mapping.start, mapping.end - mapping.start))
            code.append(f"{part}@{mapping.start:x}")
        for size in SIZES:
            piece = folder / "trace"
            piece.write_bytes(short.whole(data, size))
            again = max(1, (1 << 20) // size)
            command = [*build, "--", str(piece), str(REPETITIONS), str(again), *code]
            found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows += [row(piece.stat().st_size, line) for line in found.stdout.splitlines()]
    return rows


def row(size: int, line: str) -> list[str]:
    """Of a line that the program printed."""
    name, first, *rest = line.split()
    if first == "cannot:":
        return [f"{size:,}", name, " ".join(rest), "", ""]
    fresh, again = int(first) / 1e3, int(rest[0]) / 1e3
    return [f"{size:,}", name, f"{fresh:,.0f}", f"{again:,.0f}", f"{size / again:,.0f}"]


def main() -> None:
    """Measure, print, keep."""
    with tempfile.TemporaryDirectory(prefix="rtit-bench-") as folder:
        load = clock.load()
        rows = measured(Path(folder))
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    machine = clock.machine()
    lines = [
        f"# Bitmaps of short traces, {today}",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}; load "
        f"{load:.1f} at the beginning, {clock.load():.1f} at the end. CPU time, medians "
        f"of {REPETITIONS}. The beginning of `{' '.join(PROGRAM)}` under QEMU, without RET "
        "compression, into a bitmap of 64 KB. First: a decoder is made, "
        "and knows nothing; again: one that has seen this trace.",
        "",
        *report.table(["bytes", "decoder", "first, us", "again, us", "again, MB/s"], rows),
    ]
    text = "\n".join(lines) + "\n"
    (RESULTS / f"{today}-peers.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
