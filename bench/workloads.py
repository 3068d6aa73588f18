"""Decoding of six programs, with and without RET compression and with CYCs, by one thread and by
two, compared with libipt and perf.

`PYTHONPATH=python:bench:tests .venv/bin/python bench/workloads.py [--repetitions N]` prints tables,
and leaves them in bench/results.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH.parent / "tests"))

import clock  # noqa: E402
import entries  # noqa: E402
import replicate  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
from differential.oracles import raw  # noqa: E402

OPTIONS = {
    "without RET compression": ("intel_pt/noretcomp,tsc=0,mtc=0/u", 6_000_000),
    "with RET compression": ("intel_pt/tsc=0,mtc=0/u", 2_500_000),
    "CYC and MTC": ("intel_pt/cyc,mtc_period=3/u", 4_000_000),
}
"""The event, and the approximate number of decoded bytes."""


def installed_programs(folder: Path) -> dict[str, list[str | Path]]:
    """Return the installed programs of six; their input is written to `folder`."""
    text = folder / "text"
    text.write_bytes(b"".join(b"line %d of a file\n" % (i * i) for i in range(400_000)))
    unit = folder / "unit.i"
    source = BENCH.parent / "tests" / "differential" / "oracles" / "ipt_run.c"
    preprocess: list[str | Path] = ["gcc", "-E", "-o", unit, source]
    compiler = subprocess.run(
        ["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True
    )
    commands: dict[str, list[str | Path]] = {
        "loop": [run.workload(), "150"],
        "gzip": ["/bin/gzip", "-kf", text],
        "sqlite3": ["/usr/bin/sqlite3", ":memory:", SQL],
        "ls": ["/bin/ls", "-lR", "/usr/share/doc", "/usr/lib"],
        "python3": python_command(20),
    }
    if subprocess.run(preprocess, check=False).returncode == 0:
        cc1 = compiler.stdout.strip()
        commands["cc1"] = [cc1, "-quiet", "-O2", "-fpreprocessed", unit, "-o", os.devnull]
    return {what: command for what, command in commands.items() if os.access(command[0], os.X_OK)}


def python_command(times: int) -> list[str | Path]:
    """Return a run of Python: JSON and regular expressions, `times` times."""
    program = (
        "import json, re\n"
        f"for i in range({times}):\n"
        "    text = json.dumps({str(i * j): [i, j, {'name': 'n%d' % j}] for j in range(100)})\n"
        "    json.loads(text); re.findall(r'([a-z]+)[0-9]*', text)\n"
    )
    return [Path(sys.executable).resolve(), "-c", program]


SQL = """create table t(a integer primary key, b text);
with recursive n(x) as (select 1 union all select x+1 from n where x < 60000)
insert into t select x, hex(x * 7919) from n;
select count(*), sum(length(b)) from t where b like '%3%' group by a % 17 order by 2;"""


def cut_stream(stream: bytes, size: int) -> bytes:
    """Return the stream from the first PSB to a PSB about `size` bytes after it."""
    data = replicate.from_psb(stream)
    at = data.rfind(replicate.PSB, 1, size)
    return data if len(data) <= size or at < 0 else data[:at]


def record_stream_part(
    folder: Path, command: Sequence[str | Path], event: str, size: int
) -> entries.StreamPart:
    """Record a program; return the start of its stream, and its code."""
    import rtit

    data, path = folder / "perf.data", folder / "pt"
    record = ["record", "-q", "-e", event, "--max-size", str(2 * size), "-o", str(data), "--"]
    subprocess.run(
        [sys.executable, "-m", "rtit", *record, *command], stdout=subprocess.DEVNULL, check=True
    )
    sections = []
    with rtit.Trace(data) as trace:
        stream = max(trace.streams, key=lambda each: each.size)
        pt = cut_stream(stream.read(), size)
        path.write_bytes(pt)
        image = trace.images.image(stream.tid)
        for number, mapping in enumerate(image.mappings):
            part = folder / f"code{number}"
            code = image.read(mapping.start, mapping.end - mapping.start)
            part.write_bytes(code)
            sections.append(raw.Section(part, 0, len(code), mapping.start))
        return entries.StreamPart(pt, path, data, stream.size, sections, stream.settings)


def measure_entries(piece: entries.StreamPart, times: int) -> dict[str, Any]:
    """Return the times and results of each decoder, run alternately; also wall seconds of two
    threads.
    """
    one, two = entries.ours(piece, 1), entries.ours(piece, 2)
    others = entries.bitmaps(piece) | entries.peers(piece)
    found: dict[str, list[entries.Time]] = {}
    by_two: dict[str, list[entries.Time]] = {}
    for _ in range(times):
        for name, entry in (one | others).items():
            found.setdefault(name, []).append(entry())
            if name in two:
                by_two.setdefault(name, []).append(two[name]())
    return {
        "bytes": len(piece.pt),
        "seconds": {name: [each.cpu for each in all_] for name, all_ in found.items()},
        "wall": {name: [each.wall for each in found[name]] for name in by_two},
        "two": {name: [each.cpu for each in all_] for name, all_ in by_two.items()},
        "two_wall": {name: [each.wall for each in all_] for name, all_ in by_two.items()},
        "found": {
            name: (all_[0].instructions, all_[0].errors)
            for name, all_ in found.items()
            if all_[0].instructions is not None
        },
    }


def geomean(numbers: Sequence[float]) -> float:
    return statistics.geometric_mean(numbers) if numbers else 0.0


def tables(results: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    for options, by_program in results.items():
        pieces = list(by_program.values())
        seen = [piece["found"][entries.REFERENCE] for piece in pieces]
        sizes = [f"{piece['bytes'] / 1e6:.1f} MB" for piece in pieces]
        told = [
            f"{program} {size}, {instructions / 1e6:.0f} M instructions, {errors} errors"
            for program, size, (instructions, errors) in zip(by_program, sizes, seen, strict=True)
        ]
        lines += ["", f"## {options[0].upper()}{options[1:]}", ""]
        lines += [f"By libipt: {'; '.join(told)}.", ""]
        head = ["times pt_blk", *by_program, "geometric mean", "spread, %", "CPU of two threads"]
        rows = [_row(name, pieces) for name in pieces[0]["seconds"]]
        speeds = [piece["bytes"] / 1e6 / _median(piece, entries.REFERENCE) for piece in pieces]
        rows.append(["pt_blk, MB/s", *map("{:.1f}".format, speeds), "", "", "", ""])
        lines += report.table([*head, "wall, 1 by 2"], rows)
    return lines


def _row(name: str, pieces: Sequence[dict[str, Any]]) -> list[str]:
    times = [_median(piece, entries.REFERENCE) / _median(piece, name) for piece in pieces]
    all_ = [piece["seconds"][name] for piece in pieces]
    spread = max((max(each) - min(each)) / statistics.median(each) for each in all_)
    cells = [*map("{:.1f}".format, [*times, geomean(times)]), f"{100 * spread:.0f}"]
    if name not in pieces[0]["two"]:
        return [name, *cells, "", ""]
    cpu = [_median(piece, name, "two") / _median(piece, name) for piece in pieces]
    wall = [_median(piece, name, "wall") / _median(piece, name, "two_wall") for piece in pieces]
    return [name, *cells, f"{geomean(cpu):.2f}", f"{geomean(wall):.2f}"]


def _median(piece: dict[str, Any], name: str, what: str = "seconds") -> float:
    seconds: list[float] = piece[what][name]
    return statistics.median(seconds)


def main() -> None:
    """Measure, print, and save the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3, metavar="N")
    parser.add_argument("--no-save", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="of the bytes that are decoded")
    arguments = parser.parse_args()
    load, results = clock.load(), {}
    with tempfile.TemporaryDirectory(prefix="rtit-bench-") as name:
        folder = Path(name)
        commands = installed_programs(folder)
        for options, (event, size) in OPTIONS.items():
            results[options] = {
                program: measure_entries(
                    record_stream_part(folder, command, event, int(size * arguments.scale)),
                    arguments.repetitions,
                )
                for program, command in commands.items()
            }
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    lines = [
        f"# Six programs, {today}",
        "",
        f"{clock.conditions(load)} "
        f"Speed by CPU time as a multiple of libipt's `pt_blk` with its section cache on the same "
        f"bytes and code; medians of {arguments.repetitions}, run alternately; spread: the "
        "greatest less the least of one program, by its median, of the program where it is "
        "largest. Decoders and their images are fresh, from Python, results taken in batches of "
        "65,536 and thrown away; bitmaps by a persistent decoder, fresh and after one run. perf "
        "decodes the whole recording and is given its part. CPU of two threads: of both, as a "
        "multiple of one's; wall, 1 by 2: how much sooner two are done, on a machine that is not "
        "busy.",
        *tables(results),
    ]
    text = report.join_lines(lines)
    print(text, end="")
    if not arguments.no_save:
        (BENCH / "results" / f"{today}-workloads.md").write_text(text)


if __name__ == "__main__":
    main()
