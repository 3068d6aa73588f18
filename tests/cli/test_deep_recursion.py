"""A recursion of a million levels in every output about calls: memory and size stay in proportion
to the depth.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from calls.instrumented import record
from cli.test_memory_limits import PEAK_MEMORY_SCRIPT
from programs.build import compiled
from support.recordings import require_backend

LEVELS = 1_000_000
BYTES_OF_MEMORY, BYTES_OF_FILE = 1_200, 300
"""At most, for each level."""


@pytest.fixture(scope="module")
def recursion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_backend("qemu")
    folder = tmp_path_factory.mktemp("deep")
    source = folder / "deep.c"
    source.write_text(
        "__attribute__((noinline)) int down(int n) { return n ? down(n - 1) + 1 : 0; }\n"
        f"int main(void) {{ return down({LEVELS}) != {LEVELS}; }}\n"
    )
    flags = ["-O1", "-fno-optimize-sibling-calls", "-static"]
    program = compiled("deep", [str(source)], language="c", flags=flags, directory=folder)
    limits = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (256 << 20, limits[1]))
    try:
        record(program, "qemu", folder)
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, limits)
    return folder / "data"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["calls"],
        ["calls", "--min-share", "0", "--max-depth", "2000000"],
        ["calls", "--json"],
        ["calls", "--folded"],
        ["calls", "--flamegraph", "--min-share", "0"],
        ["calls", "--speedscope"],
        ["calls", "--function", "down", "--callers"],
        ["calls", "--function", "down", "--durations"],
        ["timeline", "--for", "perfetto"],
        ["timeline", "--for", "chrome"],
        ["timeline", "--for", "speedscope"],
        ["report", "--sort", "total"],
        ["profile", "--for", "callgrind"],
        ["profile", "--for", "pprof"],
    ],
    ids=" ".join,
)
def test_recursion_of_a_million_levels_takes_bounded_memory_and_files(
    words: list[str], recursion: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", PEAK_MEMORY_SCRIPT, words[0], str(recursion), *words[1:]]
    output = tmp_path / "output"
    with output.open("wb") as file:
        if words[0] == "profile":
            command += ["-o", str(output)]
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=True)
    assert int(done.stderr.splitlines()[-1]) * 1024 <= BYTES_OF_MEMORY * LEVELS
    assert 0 < output.stat().st_size <= BYTES_OF_FILE * LEVELS
