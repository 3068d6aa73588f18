"""CPU time of this process and of others, medians, and a description of the machine."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def own_cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of this process, all threads, in `work()`; and its result."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def process_cpu(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> float:
    """Return the CPU seconds (user and system) of a process and its children. Raises RuntimeError
    if it cannot start or fails.
    """
    with subprocess.Popen(
        list(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stderr is not None
        error = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        text = error.decode(errors="replace").strip()
        raise RuntimeError(f"{command[0]}: status {process.returncode}: {text}")
    return usage.ru_utime + usage.ru_stime


def median_of(repetitions: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(repetitions))


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def machine() -> dict[str, Any]:
    """Return the properties of the machine that results depend on."""
    model = platform.processor() or "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
