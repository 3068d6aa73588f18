"""Opening a large recording: bytes read from the file, and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import replicate

PIECE = 1 << 18
CPUS = 4
THREADS = 25
"""Records of each chunk: a switch, which is two records, and two names."""
STEPS = {
    "opened: records, threads, processes": "rtit.Trace(path).threads",
    "`rtit info`: every packet": "contents(rtit.Trace(path))",
    "every packet as rows": "sum(len(p) for s in rtit.Trace(path).streams for p in s.packets())",
}
CHILD = """
import json, sys, time
from pathlib import Path
import rtit
from rtit.trace.contents import contents
def read():
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("read_bytes:") + 1])
def peak():
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("VmHWM:") + 1])
path, step = sys.argv[1:]
memory, disk, wall, cpu = peak(), read(), time.monotonic(), time.process_time()
eval(step)
print(json.dumps({
    "wall": time.monotonic() - wall, "cpu": time.process_time() - cpu,
    "read": read() - disk, "memory": (peak() - memory) * 1024,
}))
"""


def measure_opening(recording: Path, megabytes: float) -> dict[str, Any]:
    """Measure a recording of 4 CPUs, in chunks of 256 KB or more, with switches and names.

    Returns {"bytes", "records", "rows"}; a row is {"what", "wall", "cpu", "read", "memory"} of a
    separate process that starts with the file dropped from memory: seconds, bytes read from disk,
    and growth of its peak memory in bytes.
    """
    with tempfile.TemporaryDirectory(prefix="rtit-bench-") as folder:
        path = Path(folder) / "large.data"
        records = write_recording(recording, path, int(megabytes * 1e6))
        rows = [{"what": what, **measured(path, step)} for what, step in STEPS.items()]
        return {"bytes": path.stat().st_size, "records": records, "rows": rows}


def write_recording(recording: Path, path: Path, size: int) -> int:
    """Write the file; return its number of records."""
    from rtit.perfdata import SwitchRecords, Writer
    from rtit.trace import Trace

    with Trace(recording) as trace:
        (stream,) = [stream for stream in trace.streams if stream.size]
        one = replicate.from_psb(stream.read())
    data = one * (PIECE // len(one) + 1)
    count = 0
    with Writer(
        path, config=0x2601, cpuid="GenuineIntel,6,94,3", switches=SwitchRecords.CPU_WIDE
    ) as out:
        time = 1_000_000_000
        while out.size < size:
            cpu = count % CPUS
            for thread in range(THREADS):
                time += 100
                out.switch(
                    cpu, time, (1000 + thread, 1000 + thread), (1001 + thread, 1001 + thread)
                )
                out.comm(1001 + thread, 1001 + thread, time + 50, f"worker {thread}")
            out.auxtrace(-1, -1, data, None, time, cpu=cpu)
            count += 1
    return count * (3 * THREADS + 1)


def measured(path: Path, step: str) -> dict[str, float]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, "-c", CHILD, str(path), step]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(ended.stdout)
    return found
