"""A corpus of short traces: one process, and one for each core."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

TRACES = 100_000
SIZE = 4 << 10
PSB = bytes.fromhex("0282") * 8


def measure_corpus(recording: Path, traces: int = TRACES) -> dict[str, Any]:
    """Measure the coverage of traces of 4 KB, cut from a recording at its PSBs.

    Returns {"traces", "distinct", "bytes", "edges", "covering", "rows"}; a row is {"processes",
    "wall", "cpu", "memory"}: seconds, CPU seconds of all processes, and by how many bytes the peak
    memory of this process grew.
    """
    import rtit
    from rtit.coverage import corpus_coverage
    from rtit.worker_processes import default_processes

    with rtit.Trace(recording) as trace:
        (stream,) = [stream for stream in trace.streams if stream.size]
        data = memoryview(stream.read())
        distinct = short_traces(data)
        corpus = [distinct[number % len(distinct)] for number in range(traces)]
        image = trace.images.image(stream.tid)
        rows = []
        for jobs in (1, default_processes()):
            begin, cpu, memory = time.perf_counter(), all_cpu(), peak_memory()
            found = corpus_coverage(corpus, image, jobs=jobs)
            wall, cpu = time.perf_counter() - begin, all_cpu() - cpu
            grown = peak_memory() - memory
            rows.append({"processes": jobs, "wall": wall, "cpu": cpu, "memory": grown})
    return {
        "traces": traces,
        "distinct": len(distinct),
        "bytes": sum(map(len, corpus)),
        "edges": len(found.edges),
        "covering": len(found.covering_set),
        "rows": rows,
    }


def short_traces(data: memoryview) -> list[memoryview]:
    """Return the 4 KB after each PSB."""
    content, found = bytes(data), []
    at = content.find(PSB)
    while 0 <= at <= len(data) - SIZE:
        found.append(data[at : at + SIZE])
        at = content.find(PSB, at + len(PSB))
    return found


def all_cpu() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
