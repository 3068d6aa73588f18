"""Inlined functions in call trees have the instructions that other tools find in them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from programs.build import SOURCES, CannotBuildError, compiled
from rtit.cli.main import main
from rtit.trace import CallKind, CallNode, Trace
from support.profiles import ProfiledProgram, ToolRunner, record_program

FLAGS = ["-gdwarf-4", "-O2", "-fno-plt"]
"""A linkage stub would count for its caller."""


@pytest.fixture(scope="module")
def inlined_cpp(tmp_path_factory: pytest.TempPathFactory) -> ProfiledProgram:
    try:
        program = compiled(
            "inlined_cpp", [str(SOURCES / "inlined.cpp")], language="c++", flags=FLAGS
        )
    except CannotBuildError as error:
        pytest.skip(str(error))
    return record_program(program, tmp_path_factory.mktemp("inlined_cpp"))


def without_parameters(function: str) -> str:
    return re.sub(r"(?<=\w)\([^()]*\)$", "", function)


def executed_addresses(recorded: ProfiledProgram) -> Counter[int]:
    """Return how often each instruction of the program ran, by address in the file."""
    with Trace(recorded.data) as trace:
        [stream] = trace.threads
        mapped = [m for m in trace.images.mappings(stream.tid) if m.path == str(recorded.program)]
        [symbols] = {trace.images.files.symbols(each.path, each.build_id) for each in mapped}
        assert symbols is not None
        found: Counter[int] = Counter()
        for ip in trace.instructions().columns()["ip"].tolist():
            for each in mapped:
                if each.start <= ip < each.end:
                    found[symbols.address(ip - each.start + each.offset)] += 1
    return found


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("inlined", "llvm-symbolizer"),
        ("inlined_cpp", "llvm-symbolizer"),
        # of nested inlined calls in C++, addr2line takes the one with the least code
        ("inlined", "addr2line"),
    ],
)
def test_self_of_inlined_functions_equals_the_count_of_their_instructions(
    name: str, tool: str, request: pytest.FixtureRequest, run_tool: ToolRunner
) -> None:
    recorded = request.getfixturevalue(name)
    counts = executed_addresses(recorded)
    words = ["-f", "-i", "-C", "-a", "-e", recorded.program]
    if tool == "llvm-symbolizer":
        words = ["--output-style=GNU", *words]
    printed = run_tool(tool, *words, *map(hex, counts))
    # address, then function and line of each inlined call, the innermost first
    innermost = re.findall(r"^0x([0-9a-f]+)\n(.*)\n", printed, re.MULTILINE)
    assert len(innermost) == len(counts)
    expected: Counter[str] = Counter()
    for address, function in innermost:
        expected[without_parameters(function)] += counts[int(address, 16)]
    found: Counter[str] = Counter()
    inlined_functions = set()
    with Trace(recorded.data) as trace:
        for node in trace.call_tree(inlines=True):
            if node.module == str(recorded.program):
                function = without_parameters(node.function)
                found[function] += node.self_instructions
                if node.kind == CallKind.INLINED:
                    inlined_functions.add(function)
    assert len(inlined_functions) == {"inlined": 2, "inlined_cpp": 4}[name]
    compared = {*inlined_functions, "main", "repeat", "often", "external", "work", "square"}
    assert {each: found[each] for each in compared} == {each: expected[each] for each in compared}


def test_calls_of_inlined_functions_are_below_them(inlined: ProfiledProgram) -> None:
    with Trace(inlined.data) as trace:
        nodes = list(trace.call_tree(inlines=True))
    calls = {}
    for node in nodes:
        path, at = [node.function], node
        while path[-1] != "main" and at.parent >= 0:
            at = nodes[at.parent]
            path.append(at.function)
        if node.function == "external":
            calls[tuple(path[::-1])] = node.calls
            assert_is_inlined_from_header(nodes[node.parent])
    inner = "repeat", "four_times", "twice", "external"
    assert calls == {("main", "often", *inner): 1000, ("main", "rarely", *inner): 10}


def test_inlined_functions_of_sibling_blocks_are_siblings(tmp_path: Path) -> None:
    try:
        program = compiled(
            "sibling_inlines", [str(SOURCES / "sibling_inlines.c")], language="c", flags=FLAGS
        )
    except CannotBuildError as error:
        pytest.skip(str(error))
    with Trace(record_program(program, tmp_path).data) as trace:
        nodes = list(trace.call_tree(inlines=True))
    callers = {
        node.function: nodes[node.parent].function
        for node in nodes
        if node.kind == CallKind.INLINED and node.module == str(program)
    }
    assert callers == dict.fromkeys(("first", "second", "third"), "work")


def assert_is_inlined_from_header(node: CallNode) -> None:
    assert (node.kind, node.calls, node.function) == (CallKind.INLINED, 0, "twice")
    assert Path(node.file).name == "inlined.h"


def test_outputs_of_rtit_calls_show_inlined_functions(
    inlined: ProfiledProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*options: str) -> str:
        capsys.readouterr()
        assert main(["calls", str(inlined.data), "--inlines", *options]) == 0
        return capsys.readouterr().out

    assert re.search(r" -  +four_times \[inlined\]\n.* -  +twice \[inlined\]\n", printed())
    assert "four_times" not in printed("--function", "twice").partition("twice")[0]
    folded = dict(line.rsplit(" ", 1) for line in printed("--folded").splitlines())
    with Trace(inlined.data) as trace:
        assert sum(map(int, folded.values())) == trace.streams[0].counts().instructions
    assert any(";repeat;four_times [inlined];twice [inlined];external" in each for each in folded)
    frames = json.loads(printed("--speedscope"))["shared"]["frames"]
    files = {each["name"]: Path(each["file"]).name for each in frames if "file" in each}
    assert files["twice [inlined]"] == files["four_times [inlined]"] == "inlined.h"
    svg = ElementTree.fromstring(printed("--flamegraph", "--min-share", "0"))
    tooltips = [each.text or "" for each in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert any(
        each.startswith("twice [inlined]\n") and each.endswith("/inlined.h") for each in tooltips
    )
    nodes = json.loads(printed("--json"))["nodes"]
    assert {node["calls"] for node in nodes if node["kind"] == "inlined"} == {None}


def test_report_counts_inlined_functions_on_request(
    inlined: ProfiledProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    def instructions(*options: str) -> dict[str, int]:
        capsys.readouterr()
        assert main(["report", str(inlined.data), "--json", "--sort", "self", *options]) == 0
        rows = json.loads(capsys.readouterr().out)["calls"]
        return {
            each["function"]: each["self"]
            for each in rows
            if each["module"] == str(inlined.program)
        }

    physical, with_inlines = instructions(), instructions("--inlines")
    assert "twice" not in physical
    inner = with_inlines["twice"] + with_inlines["four_times"]
    assert physical["repeat"] == with_inlines["repeat"] + inner
    assert main(["report", str(inlined.data), "--inlines"]) == 2
