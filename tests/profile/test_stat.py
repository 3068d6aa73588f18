"""`rtit stat`: counts equal the execution; baselines show what changed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.events import EventKind
from rtit.cli.main import main
from rtit.profile import stat_formats
from rtit.profile.builder import build_profile
from rtit.trace import Trace
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]


def count_by_stat(capsys: pytest.CaptureFixture[str], data: Path) -> dict[str, dict[str, int]]:
    assert main(["stat", "--json", str(data)]) == 0
    found: dict[str, dict[str, int]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", ["pointers", "recursion", "returns", "fork", "threads"])
def test_counts_equal_execution(
    name: str, program: ProgramBuilder, record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    live = record([program(name)])
    kinds: Counter[EventKind] = Counter()
    taken = last = 0
    clocks: dict[int, int] = {}
    processes = set()
    for event in live.log.events():
        kinds[event.kind] += 1
        taken += event.kind == EventKind.CONDITIONAL and event.flags & 1
        if event.kind == EventKind.EXIT:
            clocks[event.tid] = event.extra
        if event.kind == EventKind.THREAD:
            processes.add(event.ip)
        last = max(last, event.clock)
    counts = count_by_stat(capsys, live.data)["counts"]
    assert counts == {
        "instructions": sum(clocks.values()),
        "conditional branches": kinds[EventKind.CONDITIONAL],
        "taken conditional branches": taken,
        "jumps": kinds[EventKind.JUMP] + kinds[EventKind.INDIRECT_JUMP],
        "indirect jumps": kinds[EventKind.INDIRECT_JUMP],
        "calls": kinds[EventKind.CALL] + kinds[EventKind.INDIRECT_CALL],
        "indirect calls": kinds[EventKind.INDIRECT_CALL],
        "returns": kinds[EventKind.RETURN],
        "system calls": kinds[EventKind.SYSCALL],
        "threads": len(clocks),
        "processes": len(processes),
    }


def test_functions_files_and_threads_add_up(
    program: ProgramBuilder, record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    found = count_by_stat(capsys, record([program("threads")]).data)
    whole = found["counts"]["instructions"]
    for table in ("functions", "files", "threads"):
        assert sum(found[table].values()) == whole


@pytest.mark.parametrize("per", ["function", "dso", "thread"])
def test_per_selects_table(
    per: str, program: ProgramBuilder, record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    data = record([program("recursion")]).data
    found = count_by_stat(capsys, data)
    assert main(["stat", "--per", per, "--top", "2", str(data)]) == 0
    lines = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    table = found[{"function": "functions", "dso": "files", "thread": "threads"}[per]]
    most = Counter(table).most_common(1)[0]
    count, _share, name = lines[0].split(maxsplit=2)
    assert (name, int(count.replace(",", ""))) == most


def test_baseline_shows_changes(
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = record([program("recursion")]).data
    found = count_by_stat(capsys, data)
    path = tmp_path / "baseline.json"

    def against(change: int, limit: str) -> int:
        counts = {**found["counts"], "instructions": found["counts"]["instructions"] - change}
        name = next(each for each in found["functions"] if each.startswith("down "))
        functions = {**found["functions"], name: found["functions"][name] - change}
        path.write_text(json.dumps({"counts": counts, "functions": functions}))
        return main(["stat", "--baseline", str(path), "--fail-above", limit, str(data)])

    whole = found["counts"]["instructions"]
    assert against(0, "0%") == 0
    assert "+0  instructions since the baseline (+0.0000%)" in capsys.readouterr().out
    assert against(10, "0%") == 1
    said = capsys.readouterr().out
    assert "+10  instructions since the baseline" in said
    assert "+10  down (" in said
    assert main(["stat", "--json", "--baseline", str(path), str(data)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["counts"] == found["counts"]
    assert "+10  instructions since the baseline" in printed.err
    assert against(-10, "0%") == 0
    assert against(whole // 100, "2%") == 0
    assert against(whole // 20, "2%") == 1


def test_markdown_has_the_counts_and_their_changes(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = record([program("recursion")]).data
    counts = count_by_stat(capsys, data)
    assert main(["stat", "--format", "markdown", str(data)]) == 0
    rows = read_markdown_table(capsys.readouterr().out)
    assert rows == [[name, f"{count:,}"] for name, count in counts["counts"].items()]

    counts["counts"]["instructions"] -= 10
    function = next(name for name in counts["functions"] if name.startswith("main ("))
    counts["functions"][function] -= 10
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(counts))
    assert main(["stat", "--format", "markdown", "--baseline", str(path), str(data)]) == 0
    of_counts, of_functions = capsys.readouterr().out.split("\n\n")
    before, now = counts["counts"]["instructions"], counts["counts"]["instructions"] + 10
    share = f"{10 / before:+.2%}"
    assert read_markdown_table(of_counts)[0] == [
        "instructions",
        f"{before:,}",
        f"{now:,}",
        f"+10 ({share})",
    ]
    assert all(row[3] == "" for row in read_markdown_table(of_counts)[1:])
    [row] = read_markdown_table(of_functions)
    assert (row[0], row[3].split()[0]) == (f"`{function}`", "+10")


def test_markdown_begins_with_an_exceeded_limit(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = record([program("recursion")]).data
    counts = count_by_stat(capsys, data)
    counts["counts"]["instructions"] -= 10
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(counts))
    words = ["stat", "--format", "markdown", "--baseline", str(path), str(data), "--fail-above"]
    assert main([*words, "0%"]) == 1
    assert "which is more than the limit of 0.0000%." in capsys.readouterr().out.splitlines()[0]
    assert main([*words, "50%"]) == 0
    assert "limit" not in capsys.readouterr().out
    assert main(["stat", "--per", "dso", "--format", "markdown", str(data)]) == 2
    assert "--per cannot be combined with --format markdown" in capsys.readouterr().err


def read_markdown_table(text: str) -> list[list[str]]:
    """Return the cells of all rows but the header; without the marks of indented counts."""
    _, _, *lines = text.strip().splitlines()
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [[row[0].removeprefix("- "), *row[1:]] for row in rows]


def test_github_benchmark_has_a_row_for_each_count(
    program: ProgramBuilder, record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    data = record([program("recursion")]).data
    counts = count_by_stat(capsys, data)["counts"]
    assert main(["stat", "--format", "github-benchmark", str(data)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["value"]) for row in rows] == [
        (f"{data}: {name}", count) for name, count in counts.items()
    ]
    assert [row["unit"] for row in rows[:3]] == ["instructions", "branches", "branches"]


@pytest.mark.parametrize("name", ["a|b", "`", "``x", "operator|", "f`g"])
def test_names_in_markdown_stay_in_their_cell(name: str) -> None:
    cell = stat_formats._code(name)
    assert not re.search(r"(?<!\\)\|", cell)
    fence = re.match("`+", cell)
    assert fence
    inner = cell[len(fence[0]) : -len(fence[0])]
    assert fence[0] not in re.findall("`+", inner)
    assert inner.strip().replace("\\|", "|") == name


def test_baseline_of_a_program_with_another_name_is_compared_by_function(
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = record([program("recursion")]).data
    found = count_by_stat(capsys, data)
    [file] = [each for each in found["files"] if each.startswith("recursion")]
    functions = {
        name.replace(f"({file})", "(older)"): count - 10 * name.startswith("down ")
        for name, count in found["functions"].items()
    }
    assert "down (older)" in functions
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({"counts": found["counts"], "functions": functions}))
    assert main(["stat", "--baseline", str(path), str(data)]) == 0
    changes = capsys.readouterr().out.partition("since the baseline")[2].splitlines()[1:]
    count = found["functions"][f"down ({file})"]
    assert [line.strip() for line in changes] == [
        f"functions of {file} are compared with those of older",
        f"+10  down ({file}): {count - 10:,}, now {count:,}",
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"counts": {}, "functions": {}}', "[" * 100_000,
    '{"counts": {"instructions": "1"}, "functions": {}}'])  # fmt: skip
def test_invalid_baseline_is_an_input_error(
    text: str,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = record([program("recursion")]).data
    path = tmp_path / "baseline.json"
    path.write_text(text)
    assert main(["stat", "--baseline", str(path), str(data)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"rtit stat: {path}: no")
    assert len(said.err.splitlines()) == 1


def test_unusable_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stat", "--fail-above", "1%", "no such file"]) == 2
    assert "--fail-above needs --baseline" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["stat", "--fail-above", "much", "no such file"])


def test_counters_beyond_the_limit_are_reported(
    program: ProgramBuilder,
    record: Recorder,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = record([program("fork")]).data
    with Trace(data) as trace, Trace(data, max_counters=10) as less:
        whole, part = build_profile(trace, trace.streams), build_profile(less, less.streams)
    ran = [each.executed_instructions for each in whole.binaries]
    assert part.losses.uncounted_transfers > 0
    assert part.transfers == whole.transfers
    assert part.instructions == whole.instructions
    assert 0 < sum(each.executed_instructions for each in part.binaries) < sum(ran)
    assert main(["stat", "--max-edges", "10", str(data)]) == 3
    given = capsys.readouterr()
    assert " -" not in given.out
    warnings = given.err
    assert (
        f"missing: {part.losses.uncounted_transfers:,} transfers are beyond --max-edges" in warnings
    )
    assert (
        f"missing: {part.losses.uncounted_runs:,} runs of instructions are beyond --max-edges"
        in warnings
    )
    assert "missing: the system calls of those runs are in no count\n" in warnings
    whole_at = str(max(len(each.edges.count) for each in whole.binaries) + 100_000)
    assert main(["stat", "--max-edges", whole_at, str(data)]) == 0
