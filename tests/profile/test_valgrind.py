"""callgrind, which instruments the program independently, counts the same instructions and
calls.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.trace import Trace
from support.callgrind import inclusive_by_function, read_costs, run_callgrind
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]


@pytest.mark.parametrize("name", ["pointers", "recursion", "branch_next", "crash_late"])
def test_counts_equal_callgrind(
    name: str, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    theirs = run_callgrind(program(name), tmp_path, "--dump-instr=yes", "--compress-pos=no")
    ours = tmp_path / "ours"
    data = record([program(name)]).data
    assert main(["profile", str(data), "--for", "callgrind", "-o", str(ours)]) == 0
    own, calls, inclusive = read_costs(ours.read_text())
    own_theirs, calls_theirs, inclusive_theirs = read_costs(theirs.read_text())
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


@pytest.mark.parametrize("name", ["pointers", "recursion", "crash_late"])
def test_inclusive_instructions_equal_callgrind_annotate(
    name: str,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Recursive calls count once: callgrind shows them apart, as a function'2."""
    data = record([program(name)]).data
    profile = tmp_path / "ours"
    assert main(["profile", str(data), "--for", "callgrind", "-o", str(profile)]) == 0
    ours = annotated_inclusive_costs(profile)
    with Trace(data) as trace:
        entries = {node.function: node.entry for node in trace.call_tree()}
    theirs = annotated_inclusive_costs(run_callgrind(program(name), tmp_path))
    # callgrind reads no symbols of a program without data
    names = {f"{entry:#018x}": function for function, entry in entries.items()}
    theirs = {names.get(each, each): cost for each, cost in theirs.items() if "'" not in each}
    assert ours.keys() == theirs.keys() == entries.keys()
    assert len(ours) > 3
    # callgrind counts a block at its end, which the last block does not reach
    differ = {each: cost - theirs[each] for each, cost in ours.items() if cost != theirs[each]}
    assert differ.keys() <= {"_start", "begin", "main"}
    assert len({*differ.values()}) == 1

    capsys.readouterr()
    assert main(["report", str(data), "--sort", "total", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["calls"]
    assert {row["function"]: row["total"] for row in rows} == ours
    for function, cost in ours.items():
        options = ["--function", function, "--folded"]
        assert main(["calls", str(data), *options]) == 0
        stacks = capsys.readouterr().out.splitlines()
        assert sum(int(stack.rpartition(" ")[2]) for stack in stacks) == cost


def annotated_inclusive_costs(profile: Path) -> dict[str, int]:
    """Return the inclusive cost of each function that `callgrind_annotate` prints.

    Rows without an object are parts of functions: lines that are inlined from another file.
    """
    tool = shutil.which("callgrind_annotate")
    if tool is None:
        pytest.skip("callgrind_annotate is not installed")
    words = [tool, "--inclusive=yes", "--threshold=100", "--auto=no", str(profile)]
    # in the folder of the sources, it would name some files by relative paths
    ended = subprocess.run(words, cwd=profile.parent, capture_output=True, text=True, check=True)
    rows = re.findall(r"^ *([\d,]+) \(.*%\)  .*:(\S+) \[", ended.stdout, re.MULTILINE)
    return {name: int(cost.replace(",", "")) for cost, name in rows}
