"""Short traces of a fuzzer: the cost of the first run and of later runs."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clock
import replicate
from differential.oracles import libipt, raw

SIZE = 16 << 10
AGAIN = 20
"""Runs of a decoder with cached code for each run without."""


def measure_short_traces(recording: Path, executable: Path, repetitions: int) -> dict[str, Any]:
    """Measure the first 16 KB of the recording's stream by a new decoder, and by one that has
    decoded them before.

    Returns {"bytes", "instructions", "rows"}; a row is {"what", "first", "again", "instructions"}
    in CPU seconds. rtit writes a bitmap of 64 KB, from Python; libipt reports blocks. Raises
    RuntimeError if the two disagree by more than the last block.
    """
    import rtit

    with rtit.Trace(recording) as trace:
        (stream,) = [stream for stream in trace.streams if stream.size]
        data = whole_packets(replicate.from_psb(stream.read()))
        image = trace.images.image(stream.tid)
        bitmap = bytearray(1 << 16)
        first, again, known, instructions = [], [], [], 0
        for _ in range(repetitions):
            fresh = rtit.Decoder(image)
            first.append(clock.own_cpu(lambda: fresh.run(data, bitmap))[0])  # noqa: B023 - at once
            again.append(per_run(lambda: fresh.run(data, bitmap)))  # noqa: B023
            known.append(per_run(lambda: fresh.run(data)))  # noqa: B023
            instructions = fresh.counts().instructions
    rows: list[dict[str, Any]] = [
        {"what": "rtit.Decoder, bitmap", "first": first, "again": again},
        {"what": "rtit.Decoder, edges counted", "first": None, "again": known},
    ]
    try:
        rows.append(of_libipt(data, executable, repetitions, instructions))
    except libipt.LibiptMissingError as error:
        print(f"without libipt: {error}")
    for row in rows:
        for name in ("first", "again"):
            row[name] = statistics.median(row[name]) if row[name] is not None else None
    return {"bytes": len(data), "instructions": instructions, "rows": rows}


def whole_packets(data: bytes, size: int = SIZE) -> bytes:
    """Return the packets that end within the first `size` bytes."""
    from rtit.packets import scan

    end = 0
    for packet in scan(data[: size + 64]):
        if packet.offset > size:
            break
        end = packet.offset
    return data[:end]


def per_run(work: Callable[[], object]) -> float:
    def runs() -> None:
        for _ in range(AGAIN):
            work()

    return clock.own_cpu(runs)[0] / AGAIN


def of_libipt(data: bytes, executable: Path, repetitions: int, instructions: int) -> dict[str, Any]:
    first, again = [], []
    with tempfile.TemporaryDirectory(prefix="rtit-bench-") as folder:
        path = Path(folder) / "short.pt"
        path.write_bytes(data)
        for _ in range(repetitions):
            runs = libipt.measure(path, raw.code_sections(executable), 1 + AGAIN)
            first.append(runs[0].seconds)
            again.append(statistics.median(run.seconds for run in runs[1:]))
    found = runs[0].instructions
    if abs(found - instructions) > instructions // 100 + 100:
        raise RuntimeError(f"libipt found {found:,} instructions, rtit {instructions:,}")
    return {"what": "libipt pt_blk with section cache", "first": first, "again": again}
