"""The tools that read profiles find the counts of the execution."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.image.inlined_calls import FunctionIndex
from rtit.profile.builder import build_profile
from rtit.profile.functions import instructions_by_function
from rtit.profile.tables import Profile
from rtit.trace import End, Trace
from support.profiles import ProfiledProgram, ToolRunner
from support.recordings import record_to_end

COMPARISONS = sum(300 - i - 1 for i in range(300))
"""Iterations of the inner loop of bubble, by its source."""


@pytest.fixture(scope="session")
def counted(profiled: ProfiledProgram) -> Profile:
    with Trace(profiled.data) as trace:
        return build_profile(trace, trace.streams)


@pytest.fixture(scope="session")
def functions(counted: Profile) -> Counter[str]:
    """Return the instructions of the program by function."""
    assert counted.main is not None
    symbols = counted.main.symbols
    owners = FunctionIndex(symbols).find_functions(counted.main.offset)
    found: Counter[str] = Counter()
    for owner, count in zip(owners.tolist(), counted.main.count.tolist(), strict=True):
        found[symbols.name(owner) if owner >= 0 else ""] += count
    return found


def taken_branches(program: Path, run: Callable[[Path], None], tmp_path: Path) -> int:
    """Run a program again and return the branches that it takes."""
    data = tmp_path / f"{program.name}.data"
    run(data)
    with Trace(data) as trace:
        main = build_profile(trace, trace.streams).main
    assert main is not None
    edges = main.edges_within_binary
    return int(edges.count[np.isin(edges.kind, [End.CONDITIONAL, End.JUMP])].sum())


def test_bolt_optimizes_with_profile(
    profiled: ProfiledProgram, counted: Profile, run_tool: ToolRunner, tmp_path: Path
) -> None:
    data = profiled.written("bolt")
    said = run_tool("perf2bolt", profiled.program, "-p", data, "--pa", "-o", "fdata")
    assert "Out of range traces involving unknown regions: 0 " in said
    faster = tmp_path / "faster"
    options = ("-reorder-blocks=ext-tsp", "-dyno-stats", "-report-stale")
    said = run_tool("llvm-bolt", profiled.program, "-o", faster, "-data", "fdata", *options)
    assert "stale profile" not in said
    counts = [int(found) for found in re.findall(r"(\d+) : taken branches", said)]
    assert len(counts) == 2
    assert counts[1] < 0.9 * counts[0]
    # except in functions that BOLT does not change, before and after main
    assert counted.main is not None
    edges = counted.main.edges_within_binary
    passed = int(edges.count[edges.kind == End.CUT].sum())
    first = re.search(r"(\d+) : non-taken conditional branches", said)
    assert first is not None
    assert passed - 10 <= int(first[1]) <= passed

    def record(program: Path) -> Callable[[Path], None]:
        def recorded(data: Path) -> None:
            record_to_end(
                start_recording(RecordRequest([str(program)], backend="qemu", output=data))
            )

        return recorded

    output = [
        subprocess.run([program], capture_output=True, check=True).stdout
        for program in (profiled.program, faster)
    ]
    assert output[0] == output[1]
    before = taken_branches(profiled.program, record(profiled.program), tmp_path)
    assert taken_branches(faster, record(faster), tmp_path) < 0.9 * before


def test_bolt_reads_counts_of_the_source(
    profiled: ProfiledProgram, run_tool: ToolRunner, tmp_path: Path
) -> None:
    """Edges in BOLT's own profile have the counts that follow from the source."""
    run_tool("perf2bolt", profiled.program, "-p", profiled.written("bolt"), "--pa", "-o", "fdata")
    lines = [line.split() for line in (tmp_path / "fdata").read_text().splitlines()]
    calls: Counter[tuple[str, str]] = Counter()
    for row in lines:
        if row[0] == row[3] == "1" and row[5] == "0":
            calls[row[1].partition("/")[0], row[4].partition("/")[0]] += int(row[7])
    assert calls["main", "bubble"] == 1
    assert calls["main", "fill"] == 2
    outcomes = [
        int(row[7]) for row in lines if row[1].startswith("bubble") and row[4].startswith("bubble")
    ]
    # the inner loop is the most frequent edge
    assert max(outcomes) <= COMPARISONS
    assert sum(each > COMPARISONS - 600 for each in outcomes) >= 1


def test_bolt_finds_no_mismatch_in_linkage_stubs(
    linkage_stubs: ProfiledProgram, run_tool: ToolRunner
) -> None:
    data = linkage_stubs.written("bolt")
    words = [linkage_stubs.program, "-p", data, "--pa", "-o", "fdata"]
    said = run_tool("perf2bolt", *words)
    (mismatching,) = re.findall(r"traces mismatching disassembled function contents: (\d+)", said)
    assert int(mismatching) == 0


def test_functions_of_linkage_stubs_have_names(linkage_stubs: ProfiledProgram) -> None:
    """Stubs have the names of their targets, and the code that all stubs jump to has its own."""
    with Trace(linkage_stubs.data) as trace:
        main = build_profile(trace, trace.streams).main
    assert main is not None
    found = dict(instructions_by_function(main))
    by_name = {name: count for (name, _), count in found.items()}
    # the first call goes through the first entry, at two more instructions
    assert by_name["strlen@plt"] == by_name["strtol@plt"] == 1000 + 2
    assert by_name["printf@plt"] == 1 + 2
    stubs = sum(name.endswith("@plt") and name != "__cxa_finalize@plt" for name in by_name)
    assert by_name[".plt"] == 2 * stubs
    assert by_name["_init"] < 10


def test_llvm_reads_inlined_functions(inlined: ProfiledProgram, run_tool: ToolRunner) -> None:
    """create_llvm_prof 0.19 fails here, so that the documentation recommends llvm-profgen."""
    data = inlined.written("llvm")
    words = [f"--binary={inlined.program}", f"--unsymbolized-profile={data}", "--use-offset=0"]
    run_tool("llvm-profgen", *words, "--output=spgo", "--format=text")
    said = run_tool("cat", "spgo")
    (inner,) = re.findall(r" four_times:.*\n +2: 1010\n +1: twice:.*\n +(.*)", said)
    assert inner == "1: 1010 external:1010"


def test_autofdo_reads_exact_counts(
    profiled: ProfiledProgram, run_tool: ToolRunner, functions: Counter[str]
) -> None:
    data = profiled.written("autofdo")
    words = [f"--binary={profiled.program}", f"--profile={data}", "--format=text", "--out=afdo"]
    run_tool("create_llvm_prof", "--profiler=text", *words)
    assert_samples(run_tool("cat", "afdo"), functions)


def test_llvm_reads_exact_counts(
    profiled: ProfiledProgram, run_tool: ToolRunner, functions: Counter[str]
) -> None:
    data = profiled.written("llvm")
    words = [f"--binary={profiled.program}", f"--unsymbolized-profile={data}", "--use-offset=0"]
    run_tool("llvm-profgen", *words, "--output=spgo", "--format=text")
    assert_samples(run_tool("cat", "spgo"), functions)
    assert "bubble" in run_tool("llvm-profdata", "show", "--sample", "spgo")


def test_llvm_reads_exact_counts_from_perf_script(
    profiled: ProfiledProgram, counted: Profile, run_tool: ToolRunner, tmp_path: Path
) -> None:
    """LLVM counts each branch of the samples as often as it was taken.

    Its profile equals the one that it makes from exact counts.
    """
    data = profiled.written("perf")
    assert len(data.read_text().split("\n")) > 100
    words = [f"--binary={profiled.program}", f"--perfscript={data}"]
    options = ["--skip-symbolization", "--use-offset=0", "--output=unsymbolized"]
    run_tool("llvm-profgen", *words, *options)
    found = Counter[tuple[int, int]]()
    for line in (tmp_path / "unsymbolized").read_text().splitlines():
        if "->" in line:
            ends, _, count = line.partition(":")
            source, _, target = ends.partition("->")
            found[int(source, 16), int(target, 16)] = int(count)
    main = counted.main
    assert main is not None
    within = main.edges_within_binary
    taken = within.select_rows(
        np.isin(within.kind, [End.CONDITIONAL, End.JUMP, End.CALL, End.RETURN])
    )
    sources, targets = map(main.symbols.addresses, (taken.source, taken.target))
    ours = zip(sources.tolist(), targets.tolist(), taken.count.tolist(), strict=True)
    wanted = Counter({(source, target): count for source, target, count in ours})
    # To LLVM the PLT is elsewhere, as are the sources of calls from other files.
    inside = Counter({each: count for each, count in found.items() if each[0] > 1})
    assert inside == Counter({each: wanted[each] for each in inside})
    assert inside.total() > 0.99 * wanted.total() > 10_000
    run_tool("llvm-profgen", *words, "--output=spgo", "--format=text")
    exact = [f"--binary={profiled.program}", f"--unsymbolized-profile={profiled.written('llvm')}"]
    run_tool("llvm-profgen", *exact, "--use-offset=0", "--output=exact", "--format=text")
    assert (tmp_path / "spgo").read_text() == (tmp_path / "exact").read_text()


def assert_samples(text: str, functions: Counter[str]) -> None:
    """Check a sample profile: the heaviest function, and exact counts of the loop's lines."""
    heads = [line for line in text.splitlines() if line and not line.startswith(" ")]
    weight = {name: int(total) for name, total, _head in (each.split(":") for each in heads)}
    ours = [name for name, _count in functions.most_common() if name in weight]
    assert ours[0] == "bubble"
    assert max(weight, key=lambda name: weight[name]) == "bubble"
    assert {"bubble", "compare", "fibonacci", "fill", "main"} <= weight.keys()
    bubble = text[text.index("bubble:") :].splitlines()[1:]
    lines = [line for line in bubble if line.startswith(" ")]
    counts = {int(each) for line in lines for each in re.findall(r": (\d+)", line)}
    assert COMPARISONS in counts
    calls = re.findall(r" fibonacci:(\d+)", text[text.index("fibonacci:") :].partition("main")[0])
    # Two calls on one line, as often each: one of these tools keeps one of their counts, another
    # adds them up.
    whole = calls_of_fibonacci(11) - 1
    assert {*map(int, calls)} in ({whole}, {whole // 2})


def calls_of_fibonacci(n: int) -> int:
    return 1 if n < 2 else 1 + calls_of_fibonacci(n - 1) + calls_of_fibonacci(n - 2)


def test_pprof_reads_exact_counts(
    profiled: ProfiledProgram, run_tool: ToolRunner, functions: Counter[str], counted: Profile
) -> None:
    data = profiled.written("pprof")
    top = run_tool("go", "tool", "pprof", "-top", "-nodecount=100000", "-nodefraction=0", data)
    flat = {
        name: int(count)
        for count, name in re.findall(r"^ +(\d+) +\S+ +\S+ +\d+ +\S+ +(\S+)", top, re.MULTILINE)
    }
    for name in ("bubble", "compare", "fibonacci", "fill"):
        assert flat[name] == functions[name]
    assert f"of {counted.instructions} total" in top
    raw = run_tool("go", "tool", "pprof", "-peek", "^compare$", data)
    assert re.search(r"\d+ +100% \|   (msort|qsort|__GI___qsort|_quicksort)", raw)
    traces = run_tool("go", "tool", "pprof", "-traces", "-focus=^bubble$", data)
    stack = traces.partition(" bubble\n")[2].partition("---")[0].split()
    # from the caller to the dynamic linker, where `_dl_start_user` jumps to the program's `_start`
    assert stack[0] == "main"
    assert stack[-2:] == ["_start", "_dl_start_user"]
    assert len(stack) > 2


def test_callgrind_annotate_reads_exact_counts(
    profiled: ProfiledProgram, run_tool: ToolRunner, functions: Counter[str]
) -> None:
    data = profiled.written("callgrind")
    words = ["--threshold=100", "--auto=no", data]
    shown = counts_of_callgrind_annotate(run_tool("callgrind_annotate", *words))
    for name in ("bubble", "compare", "fibonacci", "fill", "main"):
        assert shown[name] == functions[name]
    # fibonacci calls only itself
    shown = counts_of_callgrind_annotate(run_tool("callgrind_annotate", "--inclusive=yes", *words))
    for name in ("bubble", "compare", "fibonacci", "fill"):
        assert shown[name] == functions[name]


def counts_of_callgrind_annotate(said: str) -> dict[str, int]:
    """Return the counts of the functions of the program."""
    return {
        name: int(count.replace(",", ""))
        for count, name in re.findall(r"^ *([\d,]+) \(.*:(\w+) \[[^]]*profiled", said, re.MULTILINE)
    }
