"""callgrind, which instruments the program independently, counts the same instructions and
calls.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.trace import Trace
from support.callgrind import inclusive_by_function
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]

Costs = tuple[Counter[int], Counter[tuple[int, int]], Counter[tuple[int, int]]]


def read(text: str) -> Costs:
    """Read a callgrind file: counts of instructions, and calls between instructions with number and
    inclusive cost.
    """
    own: Counter[int] = Counter()
    calls: Counter[tuple[int, int]] = Counter()
    inclusive: Counter[tuple[int, int]] = Counter()
    called: int | None = None
    jump = False
    for line in text.splitlines():
        words = line.split()
        if line.startswith(("jump=", "jcnd=")):
            jump = True
        elif line.startswith("calls="):
            called = int(words[1], 16)
            count = int(words[0].partition("=")[2])
        elif re.match("0x", line):
            at = int(words[0], 16)
            if called is not None:
                calls[at, called] += count
                inclusive[at, called] += int(words[2])
            elif not jump:
                own[at] += int(words[2])
            called, jump = None, False
    return own, calls, inclusive


@pytest.mark.parametrize("name", ["pointers", "recursion", "branch_next", "crash_late"])
def test_counts_equal_callgrind(
    name: str, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("valgrind is not installed")
    theirs = tmp_path / "theirs"
    options = ["--dump-instr=yes", "--compress-pos=no", f"--callgrind-out-file={theirs}"]
    command = [valgrind, "--tool=callgrind", *options, str(program(name))]
    subprocess.run(command, capture_output=True, check=False, timeout=300)
    ours = tmp_path / "ours"
    data = record([program(name)]).data
    assert main(["profile", str(data), "--for", "callgrind", "-o", str(ours)]) == 0
    own, calls, inclusive = read(ours.read_text())
    own_theirs, calls_theirs, inclusive_theirs = read(theirs.read_text())
    # callgrind counts a block at its end, which the last block does not reach.
    with Trace(data) as trace:
        [stream] = trace.streams
        ips = stream.instructions().columns()["ip"].tolist()
    last = own.total() - own_theirs.total()
    assert 0 < last < 20
    assert own - own_theirs == Counter(ips[-last:])
    assert not own_theirs - own
    assert calls == calls_theirs
    assert len(calls) > 1
    # callgrind has a function'2 for calls within calls, and counts in it many times
    differ_by_function = inclusive_by_function(ours.read_text())
    differ_by_function.subtract(inclusive_by_function(theirs.read_text()))
    assert {*differ_by_function.values()} == {0, last}
    assert (
        sum(each == last for each in differ_by_function.values()) <= 2
    )  # begin, main, and no more
    assert ("'2" in theirs.read_text()) == (name in ("pointers", "recursion"))
    if name not in ("pointers", "recursion"):
        differ = {pair: inclusive[pair] - inclusive_theirs[pair] for pair in calls}
        assert {*differ.values()} == {0, last}
        assert sum(each == last for each in differ.values()) <= 2  # begin, main, and no more
