"""CPU time of this process and of others, medians, and a description of the machine."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def own_cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of this process, all threads, in `work()`; and its result."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


@dataclass(frozen=True)
class ProcessUsage:
    """What a process and its children took: CPU seconds (user and system), wall seconds, and page
    faults without disk access.
    """

    cpu: float
    wall: float
    page_faults: int


def process_usage(
    command: Sequence[str | Path],
    environment: dict[str, str] | None = None,
    accepted_statuses: Sequence[int] = (0,),
) -> ProcessUsage:
    """Run a process without its output. Raises RuntimeError if it cannot start or fails."""
    begin = time.perf_counter()
    with subprocess.Popen(
        list(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stderr is not None
        error = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begin
    if process.returncode not in accepted_statuses:
        text = error.decode(errors="replace").strip()
        raise RuntimeError(f"{command[0]}: status {process.returncode}: {text}")
    return ProcessUsage(usage.ru_utime + usage.ru_stime, wall, usage.ru_minflt)


def process_cpu(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> float:
    """Return the CPU seconds of `process_usage`."""
    return process_usage(command, environment).cpu


def alternate(rounds: int, measures: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Return the results of each function, called once in each round."""
    results: dict[str, list[T]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            results[name].append(measure())
    return results


def median_of(repetitions: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(repetitions))


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def conditions(load_before: float) -> str:
    """Return the machine and its load as a sentence, for the head of a page of results."""
    found = machine()
    return (
        f"{found['cpu']}, {found['cores']} cores, Linux {found['kernel']}, Python "
        f"{found['python']}; load {load_before:.1f} at the beginning, {load():.1f} at the end."
    )


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
