"""Decoding: rtit, libipt and perf on the same bytes."""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clock
import replicate
from differential.oracles import libipt, perf, raw

if TYPE_CHECKING:
    from rtit import _core

MEGABYTE = 1_000_000


def measure_decoding(
    recording: Path, executable: Path, megabytes: float, repetitions: int
) -> dict[str, Any]:
    """Measure all decoders on a lengthened recording of one thread of a static program.

    Returns {"bytes", "copies", "instructions", "rows"}; a row is {"what", "seconds",
    "instructions", "instructions_per_second", "megabytes_per_second", "ratio"}, ratio being rtit's
    speed over it. Raises RuntimeError when the decoders disagree.
    """
    from rtit import _core
    from rtit.trace import Trace

    with tempfile.TemporaryDirectory(prefix="rtit-bench-") as folder, Trace(recording) as trace:
        (stream,) = [stream for stream in trace.streams if stream.size]
        one = replicate.from_psb(stream.read())
        count = replicate.copies_needed(one, int(megabytes * MEGABYTE))
        long = one * count
        pt = Path(folder) / "long.pt"
        pt.write_bytes(long)
        data = Path(folder) / "long.data"
        replicate.perf_data(recording, long, data)
        space = trace.images.image(stream.tid).native

        def flow(walk: bool = False) -> _core.StreamDecoder:
            return _core.StreamDecoder(long, space, walk=walk)

        decoders: dict[str, Callable[[], object]] = {
            "counts": lambda: flow().count(),
            "edges": lambda: flow().totals(),
            "hashed runs": lambda: drain(flow().runs),
            "columns": lambda: drain(flow().rows),
            "instructions": lambda: drain(flow().instructions),
            "branches": lambda: drain(flow().branches),
            "lines of text": lambda: drain(listed(flow(), space)),
            "counts, walked": lambda: flow(walk=True).count(),
        }
        instructions = int(flow().count()["instructions"])
        seconds = clock.alternate(
            repetitions, {name: functools.partial(own_cpu, way) for name, way in decoders.items()}
        )
        rows = [
            row(f"rtit, {name}", statistics.median(each), instructions, len(long))
            for name, each in seconds.items()
        ]
        rows += peers(pt, data, executable, repetitions, len(long))
        counts = {each["instructions"] for each in rows} - {None}
        if len(counts) > 1:
            raise RuntimeError(f"the decoders found different numbers of instructions: {counts}")
        for each in rows:
            each["ratio"] = rows[0]["megabytes_per_second"] / each["megabytes_per_second"]
    return {
        "bytes": len(long),
        "copies": count,
        "instructions": instructions,
        "rows": rows,
    }


def own_cpu(work: Callable[[], object]) -> float:
    return clock.own_cpu(work)[0]


def listed(flow: _core.StreamDecoder, space: _core.Space) -> Callable[[int], object]:
    """Read addresses and instructions as text, without names."""
    from rtit import _core

    flow.start_listing(_core.Listing(["ip", "asm"], space, _core.Names([]), tid=1))
    return flow.lines


def drain(take: Callable[[int], object]) -> None:
    while take(1 << 16) is not None:
        pass


def peers(
    pt: Path, data: Path, executable: Path, repetitions: int, size: int
) -> list[dict[str, Any]]:
    rows = []
    try:
        runs = libipt.measure(pt, raw.code_sections(executable), repetitions)
        seconds = statistics.median(run.seconds for run in runs)
        found = row("libipt pt_blk with section cache", seconds, runs[0].instructions, size)
        rows.append({**found, "errors": runs[0].errors})
    except libipt.LibiptMissingError as error:
        print(f"without libipt: {error}")
    try:
        errors = perf.errors(data)
        command: list[str | Path] = ["perf", "script", "-f", "-i", data, "--itrace=e"]
        with tempfile.TemporaryDirectory() as home:
            environment = {**os.environ, "HOME": home}
            seconds = clock.median_of(repetitions, lambda: clock.process_cpu(command, environment))
        rows.append({**row("perf script --itrace=e", seconds, None, size), "errors": len(errors)})
    except perf.PerfMissingError as error:
        print(f"without perf: {error}")
    return rows


def row(what: str, seconds: float, instructions: int | None, size: int) -> dict[str, Any]:
    return {
        "what": what,
        "seconds": seconds,
        "instructions": instructions,
        "instructions_per_second": None if instructions is None else instructions / seconds,
        "megabytes_per_second": size / MEGABYTE / seconds,
    }
