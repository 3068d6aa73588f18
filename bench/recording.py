"""Recording: instructions a second, and how much slower than without."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import clock

NATIVE_TIMES = 20


def record(command: Sequence[str | Path], output: Path, backend: str = "ptrace") -> None:
    """Records a program through the command line. Raises RuntimeError when rtit fails."""
    words = [sys.executable, "-m", "rtit", "record", "-q", "--backend", backend]
    words += ["-o", str(output), "--"]
    result = subprocess.run([*words, *map(str, command)], capture_output=True, check=False)
    if result.returncode or not output.exists():
        text = result.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"rtit record: status {result.returncode}: {text}")


def recording(
    what: str,
    command: Sequence[str | Path],
    output: Path,
    repetitions: int,
    qemu: str | None = None,
) -> dict[str, Any]:
    """Measures one program; leaves the last recording at `output`.

    Gives {"what", "backend", "instructions", "bytes", "native_seconds", "qemu_seconds", "seconds",
    "instructions_per_second", "slowdown"}: wall time, since the tracer and the program take turns.
    Starting Python is in it. `qemu` is the QEMU to record with; None for single steps.
    """
    from rtit.trace import Trace

    def run(words: Sequence[str | Path]) -> float:
        begin = time.perf_counter()
        clock.process_cpu(words)
        return time.perf_counter() - begin

    def recorded() -> float:
        begin = time.perf_counter()
        record(command, output, "ptrace" if qemu is None else "qemu")
        return time.perf_counter() - begin

    native_seconds = clock.median_of(NATIVE_TIMES, lambda: run(command))
    translated = [qemu, *command] if qemu is not None else None
    qemu_seconds = clock.median_of(repetitions, lambda: run(translated)) if translated else None
    seconds = clock.median_of(repetitions, recorded)
    with Trace(output) as trace:
        instructions = sum(int(s.flow().count()["instructions"]) for s in trace.streams)
        size = sum(stream.size for stream in trace.streams)
    return {
        "what": what,
        "backend": "ptrace" if qemu is None else "qemu",
        "qemu_seconds": qemu_seconds,
        "instructions": instructions,
        "bytes": size,
        "native_seconds": native_seconds,
        "seconds": seconds,
        "instructions_per_second": instructions / seconds,
        "slowdown": seconds / native_seconds,
    }
