"""Decoding of five programs, with and without RET compression and with CYCs, by one thread and by
two, beside libipt's pt_blk with its section cache.

`PYTHONPATH=python:bench:tests .venv/bin/python bench/workloads.py [--repetitions N]` prints tables,
and leaves them in bench/results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH.parent / "tests"))

import clock  # noqa: E402
import decoding  # noqa: E402
import replicate  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
from differential.oracles import libipt, raw  # noqa: E402

OPTIONS = {
    "without RET compression": ("intel_pt/noretcomp,tsc=0,mtc=0/u", 6_000_000),
    "with RET compression": ("intel_pt/tsc=0,mtc=0/u", 2_500_000),
    "CYC and MTC": ("intel_pt/cyc,mtc_period=3/u", 4_000_000),
}
"""The event, and how many bytes are decoded, about."""

THREADS = (1, 2)
PEER = "libipt pt_blk"


def programs(folder: Path) -> dict[str, list[str | Path]]:
    """Five programs, those that are here; what they read is made in `folder`."""
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
    }
    if subprocess.run(preprocess, check=False).returncode == 0:
        cc1 = compiler.stdout.strip()
        commands["cc1"] = [cc1, "-quiet", "-O2", "-fpreprocessed", unit, "-o", os.devnull]
    return {what: command for what, command in commands.items() if os.access(command[0], os.X_OK)}


SQL = """create table t(a integer primary key, b text);
with recursive n(x) as (select 1 union all select x+1 from n where x < 60000)
insert into t select x, hex(x * 7919) from n;
select count(*), sum(length(b)) from t where b like '%3%' group by a % 17 order by 2;"""


def cut(stream: bytes, size: int) -> bytes:
    """From the first PSB to about `size` bytes behind it, at a PSB."""
    data = replicate.from_psb(stream)
    at = data.rfind(replicate.PSB, 1, size)
    return data if len(data) <= size or at < 0 else data[:at]


def recorded(folder: Path, command: Sequence[str | Path], event: str, size: int) -> Any:
    """The beginning of a program's stream, and its code as (address, file)."""
    import rtit

    data = folder / "perf.data"
    record = ["record", "-q", "-e", event, "--max-size", str(2 * size), "-o", str(data), "--"]
    subprocess.run(
        [sys.executable, "-m", "rtit", *record, *command], stdout=subprocess.DEVNULL, check=True
    )
    code = []
    with rtit.Trace(data) as trace:
        stream = max(trace.streams, key=lambda each: each.size)
        pt = cut(stream.read(), size)
        image = trace.images.image(stream.tid)
        for number, mapping in enumerate(image.mappings):
            part = folder / f"code{number}"
            part.write_bytes(image.read(mapping.start, mapping.end - mapping.start))
            code.append((mapping.start, part))
        settings = stream.settings
    return pt, code, settings


def ways(data: bytes, image: Any, settings: Any) -> dict[str, Callable[[int], object]]:
    """What is measured, by how many threads."""
    from rtit import _core

    def flow(threads: int) -> _core.Flow:
        return _core.Flow(
            data,
            image.native,
            threads=threads,
            mtc_freq=settings.mtc_freq,
            tsc_ctc=settings.tsc_ctc,
            max_nonturbo_ratio=settings.max_nonturbo_ratio,
            no_retcomp=settings.no_retcomp,
        )

    return {
        "counts": lambda threads: flow(threads).count(),
        "edges": lambda threads: flow(threads).totals(),
        "blocks as numbers": lambda threads: decoding.drain(flow(threads).numbers),
        "hashed runs": lambda threads: decoding.drain(flow(threads).runs),
        "rows": lambda threads: decoding.drain(flow(threads).next),
        "instructions": lambda threads: decoding.drain(flow(threads).ips),
        "branches": lambda threads: decoding.drain(flow(threads).branches),
    }


def bitmaps(data: bytes, image: Any, repetitions: int) -> dict[str, float]:
    """CPU seconds of a fresh persistent decoder and of one that has seen the stream."""
    import rtit

    fresh, again = [], []
    bitmap = bytearray(1 << 16)
    for _ in range(repetitions):
        decoder = rtit.Decoder(image, index="afl")
        fresh.append(clock.own_cpu(lambda: decoder.run(data, bitmap))[0])  # noqa: B023 - at once
        again.append(clock.own_cpu(lambda: decoder.run(data, bitmap))[0])  # noqa: B023
    return {"bitmap, cold": statistics.median(fresh), "bitmap, warm": statistics.median(again)}


def measured(folder: Path, command: Sequence[str | Path], event: str, size: int, times: int) -> Any:
    """CPU seconds by way and threads, wall seconds likewise, and the peer's."""
    import rtit

    pt, code, settings = recorded(folder, command, event, size)
    image = rtit.Image()
    for address, part in code:
        image.add(address, part.read_bytes())
    path = folder / "pt"
    path.write_bytes(pt)
    sections = [raw.Section(part, 0, part.stat().st_size, address) for address, part in code]
    all_ways = ways(pt, image, settings)
    seconds: dict[str, list[list[float]]] = {name: [[], [], [], []] for name in all_ways}
    peer: list[float] = []
    found = None
    for _ in range(times):
        for name, way in all_ways.items():
            for at, threads in enumerate(THREADS):
                wall = time.perf_counter()
                seconds[name][at].append(clock.own_cpu(lambda: way(threads))[0])  # noqa: B023
                seconds[name][2 + at].append(time.perf_counter() - wall)
        (found,) = libipt.measure(path, sections, 1)
        peer.append(found.seconds)
    flow = ways(pt, image, settings)["counts"](1)
    result = {name: [statistics.median(each) for each in all_] for name, all_ in seconds.items()}
    return {
        "bytes": len(pt),
        "instructions": flow["instructions"],  # type: ignore[index]
        "seconds": result,
        "bitmaps": bitmaps(pt, image, times),
        "peer": statistics.median(peer),
        "peer_instructions": found.instructions if found else 0,
        "peer_errors": found.errors if found else 0,
    }


def geomean(numbers: Sequence[float]) -> float:
    return statistics.geometric_mean(numbers) if numbers else 0.0


def tables(results: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    for options, by_program in results.items():
        lines += ["", f"## {options[0].upper()}{options[1:]}", ""]
        lines += [
            ", ".join(
                f"{program} {one['bytes'] / 1e6:.1f} MB, {one['instructions'] / 1e6:.0f} M "
                f"instructions (libipt: {one['peer_instructions'] / 1e6:.0f} M, "
                f"{one['peer_errors']} errors)"
                for program, one in by_program.items()
            )
            + ".",
            "",
        ]
        rows = []
        programs_ = list(by_program)
        first = next(iter(by_program.values()))
        for name in first["seconds"]:
            speeds = [one["peer"] / one["seconds"][name][0] for one in by_program.values()]
            both = [one["seconds"][name] for one in by_program.values()]
            cpu = geomean([each[1] / each[0] for each in both])
            wall = geomean([each[2] / each[3] for each in both])
            speeds.append(geomean(speeds))
            rows.append([name, *map("{:.1f}".format, speeds), f"{cpu:.2f}", f"{wall:.2f}"])
        for name in first["bitmaps"]:
            speeds = [one["peer"] / one["bitmaps"][name] for one in by_program.values()]
            speeds.append(geomean(speeds))
            rows.append([name, *map("{:.1f}".format, speeds), "", ""])
        own = [f"{one['bytes'] / 1e6 / one['peer']:.1f}" for one in by_program.values()]
        rows.append([f"{PEER}, MB/s", *own, "", "", ""])
        head = ["times pt_blk", *programs_, "geometric mean", "CPU of two threads", "wall, 1 by 2"]
        lines += report.table(head, rows)
    return lines


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3, metavar="N")
    parser.add_argument("--no-save", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="of the bytes that are decoded")
    arguments = parser.parse_args()
    load, results = clock.load(), {}
    with tempfile.TemporaryDirectory(prefix="rtit-bench-") as name:
        folder = Path(name)
        commands = programs(folder)
        for options, (event, size) in OPTIONS.items():
            results[options] = {
                program: measured(
                    folder, command, event, int(size * arguments.scale), arguments.repetitions
                )
                for program, command in commands.items()
            }
    machine, today = clock.machine(), f"{datetime.now(UTC):%Y-%m-%d}"
    lines = [
        f"# Five programs, {today}",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python "
        f"{machine['python']}; load {load:.1f} at the beginning, {clock.load():.1f} at the end. "
        f"Speed by CPU time as a multiple of libipt's `pt_blk` with its section cache on the same "
        f"bytes and code; medians of {arguments.repetitions}, all taking turns. Decoders are "
        "fresh, from Python, results taken in batches of 65,536 and thrown away; bitmaps by a "
        "persistent decoder, fresh and after one run. CPU of two threads: of both, as a multiple "
        "of one's; wall, 1 by 2: how much sooner two are done, on a machine that is not busy.",
        *tables(results),
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if not arguments.no_save:
        stem = BENCH / "results" / f"{today}-workloads"
        stem.with_suffix(".md").write_text(text)
        kept = {"date": today, "machine": machine, "load": load, "results": results}
        stem.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
