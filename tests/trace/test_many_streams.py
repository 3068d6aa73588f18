"""A recording of thousands of threads: a finished stream keeps only its totals and ledger."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rtit.packets import encode
from rtit.perfdata import Writer

THREADS = 1000
KEPT = 25_000
"""Bytes a stream, at most: an unfinished one has about 70,000."""

# jne +2; nop; nop; jmp back
CODE = bytes.fromhex("75029090ebfa")
PACKETS = b"".join(
    (
        *(encode("PSB"), encode("TSC", tsc=0x900), encode("MODE.Exec", csl=1, csd=0, iflag=0)),
        *(encode("FUP", ip_bytes=6, payload=0x1000), encode("PSBEND")),
        *([encode("TNT", bits="TNTTNT")] * 4),
        encode("TIP.PGD", ip_bytes=0),
    )
)

TAKES = """
import sys
from pathlib import Path
from rtit.trace import Trace

def peak():
    # not ru_maxrss, which begins with the parent's
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("VmHWM:") + 1])

with Trace(sys.argv[1]) as trace:
    streams = trace.streams
    results = lambda stream: {results}
    results(streams[0])
    before = peak()
    for stream in streams[1:]:
        results(stream)
    print((peak() - before) * 1024)
    accounts = {{(stream.counts().instructions, len(list(stream.ledger()))) for stream in streams}}
    print(len(accounts), len(streams))
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    (folder / "code").write_bytes(CODE.ljust(0x1000, b"\xcc"))
    path = folder / "perf.data"
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.mmap2(1, 1, 1, 0x1000, 0x1000, 0, 5, 2, 8, 1, 4711, 0, str(folder / "code"))
        for tid in range(1, THREADS + 1):
            out.itrace_start(1, tid, 2)
            out.auxtrace(tid, 1, PACKETS, None, 3)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "results",
    [
        "sum(len(rows) for rows in stream.rows())",
        "list(stream.instructions())",
        "list(stream.branches())",
        "list(stream.events())",
        "list(stream.edges())",
        "stream.counts()",
    ],
)
def test_memory_of_finished_streams_is_freed(recording: Path, results: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", TAKES.format(results=results), str(recording)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    kept, accounts, streams = map(int, ended.stdout.split())
    assert (accounts, streams) == (1, THREADS)
    assert kept < KEPT * THREADS
