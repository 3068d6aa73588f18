"""`rtit calls` shows the calls that the source of the recorded program makes.

`recursion.c` calls `down` with 63, 64, 65 and 500, and `even` with 200. `down(n)` calls itself n
times; `even` and `odd` call each other.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.instrumented import recorded
from programs.build import C_LIBRARY, SOURCES, build, compiled
from rtit.cli.main import main
from rtit.packets import encode
from rtit.perfdata import Writer
from rtit.views.call_durations import CallDurations
from support.recordings import RecordedProgram, Recorder, thread_ends
from support.streams import SYNC

DOWN_CALLS = 64 + 65 + 66 + 501
HEADER = "         total  share           self      calls  function"
SVG_TITLE = "{http://www.w3.org/2000/svg}title"
ROW = re.compile(r" *([\d,]+) +([\d.]+)% +([\d,]+) +([\d,]+)  ( *)(.*)")


@pytest.fixture(scope="module")
def recursion(record: Recorder) -> RecordedProgram:
    return record([build("recursion")])


def print_calls(
    recording: RecordedProgram, *options: str, capsys: pytest.CaptureFixture[str]
) -> str:
    capsys.readouterr()
    assert main(["calls", str(recording.data), *options]) == 0
    return capsys.readouterr().out


def print_tree(
    recording: RecordedProgram, *options: str, capsys: pytest.CaptureFixture[str]
) -> list[tuple[int, str, int, float]]:
    """Return the depth, function, calls and share of each row."""
    header, *lines = print_calls(recording, *options, capsys=capsys).split("\n\n")[0].splitlines()
    assert header == HEADER
    rows = []
    for line in lines:
        row = ROW.fullmatch(line)
        assert row
        depth, name = len(row[5]) // 2, row[6]
        if level := re.fullmatch(r"\[(\d+)\] (.*)", name):
            assert depth == 30
            depth, name = int(level[1]), level[2]
        rows.append((depth, name, int(row[4].replace(",", "")), float(row[2])))
    return rows


def print_json(
    recording: RecordedProgram, *options: str, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, Any]]:
    nodes = json.loads(print_calls(recording, "--json", *options, capsys=capsys))["nodes"]
    assert isinstance(nodes, list)
    return nodes


def executed_instructions(recording: RecordedProgram) -> dict[int, int]:
    """Return the instructions of each thread, counted while recording."""
    return {tid: end[1] for tid, end in thread_ends(recording.truth).items()}


def test_tree_has_the_calls_of_the_program(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = print_tree(recursion, "--min-share", "0", "--max-depth", "1000", capsys=capsys)
    assert [row[:3] for row in rows[:3]] == [(0, "_start", 1), (1, "begin", 1), (2, "main", 1)]
    down = [calls for _, name, calls, _ in rows if name == "down"]
    assert len(down) == 501
    assert down[:64] == [4] * 64
    assert down[64:67] == [3, 2, 1]
    assert sum(down) == DOWN_CALLS
    below_main = {name: calls for depth, name, calls, _ in rows if depth == 3}
    assert (below_main["down"], below_main["even"]) == (4, 1)
    assert [name for _, name, _, _ in rows if name in ("even", "odd")] == ["even", "odd"] * 100 + [
        "even"
    ]


def test_max_depth_leaves_out_deeper_calls(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = print_tree(recursion, "--max-depth", "2", capsys=capsys)
    assert [row[:3] for row in rows] == [(0, "_start", 1), (1, "begin  (+1)", 1)]


def test_deep_functions_show_their_level_in_place_of_indentation(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = print_calls(recursion, "--min-share", "0", "--max-depth", "33", capsys=capsys)
    down = [line for line in printed.splitlines() if re.search(r"\bdown\b", line)]
    # _start, begin and main, and then calls of `down`
    assert [re.sub(r".*,?\d  ", "", line).lstrip() for line in down if " [" in line] == [
        "[31] down",
        "[32] down  (+1)",
    ]


def test_min_share_leaves_out_smaller_functions(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = print_tree(recursion, "--min-share", "50%", capsys=capsys)
    names = {name.partition("  (+")[0] for _, name, _, _ in rows}
    assert names == {"_start", "begin", "main", "down"}
    assert all(share >= 50 for *_, share in rows)


def test_function_is_the_root_of_its_calls(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--function", "down", "--max-depth", "2")
    rows = print_tree(recursion, *options, capsys=capsys)
    assert [row[:3] for row in rows] == [(0, "down", 4), (1, "down  (+1)", 4)]
    assert rows[0][3] == 100


def test_callers_lead_from_the_function_to_the_start_of_the_program(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = print_tree(recursion, "--function", "odd", "--callers", capsys=capsys)
    path = ["odd", "even", "main", "begin", "_start"]
    # all recursive calls belong to the outermost
    assert [row[:3] for row in rows] == [(depth, name, 100) for depth, name in enumerate(path)]


def test_folded_stacks_add_up_to_the_executed_instructions(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = print_calls(recursion, "--folded", capsys=capsys).splitlines()
    stacks = dict(line.rsplit(" ", 1) for line in lines)
    assert len(stacks) == len(lines)
    assert ";".join(["_start", "begin", "main", *["down"] * 501]) in stacks
    assert [sum(map(int, stacks.values()))] == list(executed_instructions(recursion).values())


@pytest.mark.parametrize("tool", ["inferno-flamegraph", "flamegraph.pl"])
def test_flame_graph_tool_reads_the_folded_stacks(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str], tool: str
) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    folded = print_calls(recursion, "--folded", capsys=capsys)
    picture = subprocess.run([tool], input=folded, stdout=subprocess.PIPE, text=True, check=True)
    totals = re.findall(r"<title>all \(([\d,]+) samples, 100%\)", picture.stdout)
    assert [int(each.replace(",", "")) for each in totals] == list(
        executed_instructions(recursion).values()
    )


def test_folded_callers_add_up_to_the_instructions_of_the_function(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--function", "down", "--folded")
    totals = [
        sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines())
        for text in (
            print_calls(recursion, *options, capsys=capsys),
            print_calls(recursion, *options, "--callers", capsys=capsys),
        )
    ]
    assert totals[0] == totals[1] > 0


def test_folded_stacks_have_at_most_max_depth_functions(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["calls", str(recursion.data), "--folded", "--max-depth", "300"]) == 0
    printed = capsys.readouterr()
    stacks = dict(line.rsplit(" ", 1) for line in printed.out.splitlines())
    assert max(stack.count(";") for stack in stacks) == 299
    assert [sum(map(int, stacks.values()))] == list(executed_instructions(recursion).values())
    # 501 calls of `down` in a row, three levels below `_start`
    assert printed.err == (
        "rtit calls: 204 functions are more than 300 levels deep; their instructions count as "
        "instructions of their callers\n"
    )


def write_calls(recording: RecordedProgram, path: Path, *options: str) -> bytes:
    assert main(["calls", str(recording.data), "-o", str(path), *options]) == 0
    return path.read_bytes()


def test_flame_graph_has_the_functions_and_executed_instructions(
    recursion: RecordedProgram, tmp_path: Path
) -> None:
    options = ("--flamegraph", "--min-share", "0", "--max-depth", "1000")
    picture = write_calls(recursion, tmp_path / "calls.svg", *options)
    assert write_calls(recursion, tmp_path / "again.svg", *options) == picture
    titles = [each.text or "" for each in ElementTree.fromstring(picture).iter(SVG_TITLE)]
    name, *frames = (each.split("\n") for each in titles)
    assert name[0].startswith("rtit record ")
    [(_, instructions)] = executed_instructions(recursion).items()
    assert frames[0] == ["all", f"{instructions:,} instructions (100.00%)"]
    assert [frame[0] for frame in frames].count("down") == 501
    calls = [re.findall(r"([\d,]+) calls?$", facts)[0] for name, facts in frames if name == "down"]
    assert sum(map(int, calls)) == DOWN_CALLS


def test_flame_graph_of_a_function_names_it(recursion: RecordedProgram, tmp_path: Path) -> None:
    for options, title in (((), "odd: rtit "), (("--callers",), "callers of odd: rtit ")):
        picture = write_calls(
            recursion, tmp_path / "calls.svg", "--flamegraph", "--function", "odd", *options
        )
        names = [each.text or "" for each in ElementTree.fromstring(picture).iter(SVG_TITLE)]
        assert names[0].startswith(title)
        assert names[2].startswith("odd\n")


def test_speedscope_file_has_a_profile_for_each_thread(record: Recorder, tmp_path: Path) -> None:
    recording = record([build("fork")])
    value = json.loads(write_calls(recording, tmp_path / "calls.json", "--speedscope"))
    profiles = {
        int(profile["name"].split()[1]): profile["endValue"] for profile in value["profiles"]
    }
    assert profiles == executed_instructions(recording)


@pytest.mark.parametrize(
    "options", [(), ("--folded",), ("--json",)], ids=["tree", "folded", "json"]
)
def test_output_file_has_what_is_printed_without_it(
    recursion: RecordedProgram,
    tmp_path: Path,
    options: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = print_calls(recursion, *options, capsys=capsys)
    assert write_calls(recursion, tmp_path / "calls", *options).decode() == printed


def test_json_has_parents_first_and_adds_up_to_the_executed_instructions(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = print_json(recursion, capsys=capsys)
    [(tid, instructions)] = executed_instructions(recursion).items()
    assert sum(node["self"] for node in nodes) == instructions
    totals = [node["self"] for node in nodes]
    for row in reversed(range(len(nodes))):
        parent = nodes[row]["parent"]
        assert (parent is None) == (row == 0)
        if parent is not None:
            assert parent < row
            totals[parent] += totals[row]
    assert totals == [node["total"] for node in nodes]
    assert {node["tid"] for node in nodes} == {tid}
    assert sum(node["calls"] for node in nodes if node["function"] == "down") == DOWN_CALLS


def test_durations_are_those_of_all_calls_of_the_function(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--function", "down", "--durations", "--json")
    found = json.loads(print_calls(recursion, *options, capsys=capsys))
    assert found["calls"] == DOWN_CALLS
    assert found["ends"] == {"returned": DOWN_CALLS}
    assert sum(each["calls"] for each in found["histogram"]) == DOWN_CALLS
    # four of the calls made 63, 64, 65 and 500 calls in a row; the others are within these
    steps = [each["instructions"] for each in found["slowest"]]
    assert steps == sorted(steps, reverse=True)
    [step] = {one - two for one, two in pairwise(steps)}
    assert found["instructions"]["most"] == found["instructions"]["least"] + 500 * step
    for each in found["slowest"]:
        assert each["stop"] - each["first"] == each["instructions"]
    callers = [each["call_site"].partition("+")[0] for each in found["slowest"]]
    assert callers == ["main", *["down"] * 9]


def test_durations_are_printed_with_a_histogram(
    recursion: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--function", "even", "--durations")
    summary, histogram, longest, *_ = print_calls(recursion, *options, capsys=capsys).split("\n\n")
    assert summary.startswith("101 calls; instructions of each with its callees:\n  least ")
    bars = histogram.splitlines()[1:]
    assert sum(int(re.sub(r".* \.\. +[\d,]+ +([\d,]+).*", r"\1", bar)) for bar in bars) == 101
    assert re.fullmatch(r".*  main\+0x[0-9a-f]+", longest.splitlines()[2])


@pytest.fixture(scope="module")
def slow_call(record: Recorder) -> RecordedProgram:
    source = SOURCES / "calls" / "slow_call.c"
    return record([compiled("slow-call", [str(source)], language="c", flags=[*C_LIBRARY])])


def test_slowest_call_is_compared_with_a_median_one(
    slow_call: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--function", "lookup", "--durations", "--json")
    found = json.loads(print_calls(slow_call, *options, capsys=capsys))
    slowest, median = found["slowest"][0], found["median_call"]
    assert (slowest["instructions"], median["instructions"]) == (1654, 26)
    assert slowest["tid"] != median["tid"]
    path = found["slowest_against_median"]["path"]
    assert path["instructions"] == 2
    assert [each["symbol"] for each in path["before"]] == ["lookup", "lookup+0x3"]
    assert [side[0]["assembly"].split()[0] for side in path["after"]] == ["call", "mov"]
    callees = [
        (each["context"], list(each["calls"].values()), list(each["instructions"].values()))
        for each in found["slowest_against_median"]["callees"]
    ]
    assert callees == [
        (["lookup", "load"], [1, 0], [5 + 1001 + 601, 0]),
        (["lookup", "burn"], [1, 1], [41, 21]),
        (["lookup"], [1, 1], [6, 5]),
    ]


def test_comparison_of_slowest_and_median_call_is_printed(
    slow_call: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, path, callees = print_calls(
        slow_call, "--function", "lookup", "--durations", capsys=capsys
    ).split("\n\n")
    heading, slowest, median, divergence, *_ = path.splitlines()
    assert heading == "Slowest call against a call of median duration:"
    assert re.fullmatch(r"slowest +1,654 instructions, thread \d+, index \d+-\d+", slowest)
    assert re.fullmatch(r"median +26 instructions, thread \d+, index \d+-\d+", median)
    assert "diverge after 2 equal instructions, at lookup+0x3" in divergence
    assert re.fullmatch(r" +1,607 +0 +\+1,607 +1 +0  lookup -> load", callees.splitlines()[2])


@pytest.mark.parametrize("function", ["down", "even"])
def test_recursive_calls_count_for_the_outermost_call(
    recursion: RecordedProgram, function: str, capsys: pytest.CaptureFixture[str]
) -> None:
    callees = check_sum_of_differences(recursion.data, function, capsys)
    contexts = [each["context"] for each in callees]
    assert sorted(contexts) == {"down": [["down"]], "even": [["even"], ["even", "odd"]]}[function]
    # the longest call of each, and one in the middle of the lengths of all calls
    if function == "down":
        assert callees[0]["calls"]["slowest"] == 501
    else:
        assert {each["calls"]["slowest"] for each in callees} == {101, 100}


def test_signal_handlers_are_no_callees(
    slow_call: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    callees = check_sum_of_differences(slow_call.data, "raise_at_3", capsys)
    assert any(len(each["context"]) > 1 for each in callees)
    assert not any("handle" in each["context"] for each in callees)


def check_sum_of_differences(
    path: Path, function: str, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, Any]]:
    """Return the callees that differ between the slowest call and a median one."""
    capsys.readouterr()
    assert main(["calls", str(path), "--function", function, "--durations", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    callees: list[dict[str, Any]] = found["slowest_against_median"]["callees"]
    differences = [each["difference"] for each in callees]
    durations = found["slowest"][0]["instructions"], found["median_call"]["instructions"]
    assert sum(differences) == durations[0] - durations[1] > 0
    assert list(map(abs, differences)) == sorted(map(abs, differences), reverse=True)
    return callees


def test_calls_of_equal_duration_are_not_compared(
    slow_call: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--function", "load", "--durations")
    found = json.loads(print_calls(slow_call, *options, "--json", capsys=capsys))
    assert found["median_call"] is found["slowest_against_median"] is None
    assert "Slowest call against" not in print_calls(slow_call, *options, capsys=capsys)


@given(counts=st.dictionaries(st.integers(0, 1 << 40), st.integers(1, 50), min_size=1))
def test_percentiles_equal_those_of_numpy(counts: dict[int, int]) -> None:
    durations = CallDurations("f", Counter(counts))
    values = np.repeat(list(counts), list(counts.values()))
    expected = np.percentile(values, [0, 50, 90, 99, 100], method="inverted_cdf")
    assert durations.percentiles(0, 50, 90, 99, 100) == expected.tolist()
    histogram = durations.histogram()
    for low, high, calls in histogram:
        assert calls == ((values >= low) & (values <= high)).sum()
    assert sum(calls for _, _, calls in histogram) == len(values)


@pytest.mark.parametrize("options", [(), ("--callers",), ("--durations",), ("--flamegraph",)])
def test_function_name_of_two_files_is_an_error_that_offers_both(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = recorded("unwinding.c", "qemu")
    assert main(["calls", str(path), "--function", "_start", *options]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    files = re.fullmatch(
        r"rtit calls: '_start' is in several files: (.*), (.*)\n"
        r"  name one of them: --function (.*)\n",
        printed.err,
    )
    assert files
    assert files[3] == f"_start@{Path(files[1]).name}"
    calls = {}
    for file in files.groups()[:2]:
        assert main(["calls", str(path), "--function", f"_start@{file}", "--json"]) == 0
        assert main(["calls", str(path), "--function", f"_start@{Path(file).name}", *options]) == 0
        capsys.readouterr()
        assert main(["calls", str(path), "--function", f"_start@{file}"]) == 0
        calls[file] = capsys.readouterr().out
    assert len(set(calls.values())) == 2


@pytest.mark.parametrize("name", ["puts", "_IO_puts", "puts@libc.so.6"])
def test_function_may_have_any_of_its_names(
    name: str, record: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "hello.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("a"); return puts("b") < 0; }\n')
    program = compiled("calls-hello", [str(source)], language="c", flags=[], directory=tmp_path)
    recording = record([program])
    rows = print_tree(recording, "--function", name, "--callers", capsys=capsys)
    assert [row[:3] for row in rows[:2]] == [(0, "_IO_puts", 2), (1, "main", 2)]
    options = ("--function", name, "--durations", "--json")
    assert json.loads(print_calls(recording, *options, capsys=capsys))["calls"] == 2


def test_functions_of_equal_name_are_added_up_with_a_note(
    record: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [tmp_path / "one.c", tmp_path / "two.c"]
    same = "__attribute__((noipa)) static int same(int n) { return n + %d; }\n"
    sources[0].write_text(
        f"{same % 1}int other(int n);\n"
        "int main(void) { return same(1) + same(2) + other(3) != 10; }\n"
    )
    sources[1].write_text(f"{same % 2}int other(int n) {{ return same(n); }}\n")
    words = [str(source) for source in sources]
    program = compiled("calls-same", words, language="c", flags=["-O1"], directory=tmp_path)
    recording = record([program])
    note = "rtit calls: 2 functions have the name 'same': the output adds up their calls\n"
    for options in ([], ["--callers"], ["--durations"]):
        assert main(["calls", str(recording.data), "--function", "same", *options]) == 0
        printed = capsys.readouterr()
        assert printed.err == note
        assert re.search(r" 3  same\n|^3 calls;", printed.out)
    assert main(["calls", str(recording.data), "--function", "other"]) == 0
    assert capsys.readouterr().err == ""


def test_tid_selects_the_calls_of_a_thread(
    record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = record([build("fork")])
    executed = executed_instructions(recording)
    assert len(executed) == 4
    for tid, instructions in executed.items():
        nodes = print_json(recording, "--tid", str(tid), capsys=capsys)
        assert {node["tid"] for node in nodes} == {tid}
        assert sum(node["self"] for node in nodes) == instructions


def test_each_of_several_threads_has_a_row(
    record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = record([build("fork")])
    rows = print_tree(recording, "--max-depth", "1", "--min-share", "0", capsys=capsys)
    titles = [re.match(r"thread (\d+) ", name) for _, name, _, _ in rows]
    assert {int(title[1]) for title in titles if title} == set(executed_instructions(recording))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--function", "dwn"], "no call of a function 'dwn'; similar names: down"),
        (["--function", "dwn", "--callers"], "no call of a function 'dwn'; similar names: down"),
        (["--function", "unlike"], "no call of a function 'unlike'"),
        (["--callers"], "--callers needs --function"),
        (["--durations"], "--durations needs --function"),
        (
            ["--function", "down", "--durations", "--callers"],
            "--durations goes with --json, but with no other form of output",
        ),
        (["--function", "dwn", "--durations"], "no call of a function 'dwn'; similar names: down"),
        (["--min-share", "x"], "--min-share x: expected a percentage from 0 to 100"),
        (["--min-share", "101"], "--min-share 101: expected a percentage from 0 to 100"),
        (["--min-share", "nan"], "--min-share nan: expected a percentage from 0 to 100"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_give_an_error_and_the_usage(
    recursion: RecordedProgram,
    options: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["calls", str(recursion.data), *options]) == 2
    output = capsys.readouterr()
    usage = "  usage: rtit calls [options] [FILE...]      (rtit calls --help)"
    assert output.out == ""
    assert output.err.splitlines() == [f"rtit calls: {error}", usage]


def test_missing_code_gives_exit_code_3(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3") as writer:
        writer.comm(7, 7, 1, "program")
        writer.mmap2(7, 7, 1, 0x1000, 0x1000, 0, 5, 2, 0, 0, 0, 0, "/absent/program")
        writer.auxtrace(7, 7, SYNC + encode("TNT", bits="TN"), None, 1)
    assert main(["calls", str(path)]) == 3
