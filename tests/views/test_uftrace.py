"""uftrace shows the calls of instrumented programs from the folders that rtit writes for it."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from calls.instrumented import build_instrumented, record, recorded
from calls.test_calls import logged_calls
from rtit.cli.main import main
from rtit.trace import Trace
from support.recordings import require_backend
from views.test_timeline import Slice, expected_slices

DUMPED = re.compile(r" *(\d+)\.(\d+) +(\d+): \[(entry|exit )\] (.*)\([0-9a-f]+\) depth: (\d+)")
GRAPHED = re.compile(r" *[\d.]+ +\w+ :([ |]*)(\+-)?\((\d+)\) (.*)")
REPORTED = re.compile(r" *(\d+)  (.*)")
PROGRAMS = ["threads.c", "unwinding.c", "exceptions.cpp", "coroutines.c"]

NamePath = tuple[str, ...]
"""The functions of a call stack that the program logs, the outermost first."""


def logged_paths(log: bytes, names: Mapping[int, str]) -> dict[int, list[NamePath]]:
    """Return the path of each call in order, by the number of its stack."""
    parts: dict[int, bytes] = defaultdict(bytes)
    for row in struct.iter_unpack("<QQq", log):
        parts[row[2]] += struct.pack("<QQq", *row)
    return {
        number: [tuple(names[each] for each in path) for path in logged_calls(part)[0]]
        for number, part in parts.items()
    }


def names_of_logged_functions(path: Path, log: bytes) -> dict[int, str]:
    addresses = {row[0] for row in struct.iter_unpack("<QQq", log)}
    with Trace(path) as trace:
        return {
            call.entry: call.function for call in trace.calls().rows() if call.entry in addresses
        }


def export(source: str, folder: Path, *options: str) -> tuple[Path, dict[int, list[NamePath]]]:
    """Return the folder for uftrace, and what the program logged."""
    if shutil.which("uftrace") is None:
        pytest.skip("uftrace is not installed")
    path, log = recorded(source, "qemu")
    data = folder / "uftrace.data"
    words = ["timeline", str(path), "--for", "uftrace", "-o", str(data)]
    assert main([*words, "--max-depth", "1000000", *options]) == 0
    return data, logged_paths(log, names_of_logged_functions(path, log))


def uftrace(command: str, data: Path, *options: str) -> list[str]:
    words = ["uftrace", command, "-d", str(data), "--no-pager", *options]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return ended.stdout.splitlines()


@pytest.mark.parametrize("source", PROGRAMS)
def test_uftrace_report_counts_the_logged_calls(source: str, tmp_path: Path) -> None:
    data, paths = export(source, tmp_path)
    expected = Counter(path[-1] for each in paths.values() for path in each)
    rows = filter(None, map(REPORTED.fullmatch, uftrace("report", data, "-f", "call")))
    found = {row[2].rstrip(): int(row[1]) for row in rows}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("source", PROGRAMS)
def test_uftrace_graph_has_the_logged_calls_below_their_callers(
    source: str, tmp_path: Path
) -> None:
    data, paths = export(source, tmp_path)
    expected = Counter(path for each in paths.values() for path in each)
    names = {path[-1] for path in expected}
    found: Counter[NamePath] = Counter()
    stack: list[tuple[int, str]] = []
    rows = [row for line in uftrace("graph", data) if (row := GRAPHED.fullmatch(line))]
    for row in rows[1:]:  # the first one is the program
        column = len(row[1]) + len(row[2] or "")
        if row[2]:  # the only callee is in the column of its caller
            while stack and stack[-1][0] >= column:
                stack.pop()
        stack.append((column, row[4].rstrip()))
        path = tuple(name for _, name in stack if name in names)
        if stack[-1][1] in names:
            found[path] += int(row[3])
    assert found == expected


@pytest.mark.parametrize("source", PROGRAMS[:3])
def test_uftrace_dump_has_the_logged_calls_of_each_thread_in_order(
    source: str, tmp_path: Path
) -> None:
    data, paths = export(source, tmp_path)
    names = {path[-1] for each in paths.values() for path in each}
    found: dict[str, list[NamePath]] = defaultdict(list)
    stacks: dict[str, list[str]] = defaultdict(list)
    for row in filter(None, map(DUMPED.fullmatch, uftrace("dump", data))):
        stack, name = stacks[row[3]], row[5].rstrip()
        if row[4] != "entry":
            assert stack.pop() == name
        assert len(stack) == int(row[6])
        if row[4] == "entry":
            stack.append(name)
            if name in names:
                found[row[3]].append(tuple(each for each in stack if each in names))
    assert not any(stacks.values())
    assert sorted(found.values()) == sorted(paths.values())


def test_durations_are_nanoseconds_for_instructions(tmp_path: Path) -> None:
    data, _ = export("threads.c", tmp_path)
    path, _ = recorded("threads.c", "qemu")
    with Trace(path) as trace:
        expected = expected_slices(trace)
    found: Counter[Slice] = Counter()
    stacks: dict[str, list[int]] = defaultdict(list)
    for row in filter(None, map(DUMPED.fullmatch, uftrace("dump", data))):
        time = int(row[1]) * 1_000_000_000 + int(row[2])
        if row[4] == "entry":
            stacks[row[3]].append(time)
        else:
            found[row[5].rstrip(), stacks[row[3]].pop(), time] += 1
    assert found == expected


def test_unusual_names_are_shown_by_uftrace(tmp_path: Path) -> None:
    data, paths = export("threads.c", tmp_path)
    names = {path[-1] for each in paths.values() for path in each}
    assert names == {"recurse", "siglongjmp", "work", "odd name; <&> 'x' %s"}
    shown = "\n".join(uftrace("replay", data, "-f", "none"))
    assert all(re.search(rf"^ *{re.escape(name)} ?\(\)", shown, re.MULTILINE) for name in names)


def test_functions_of_a_stripped_program_have_the_names_of_the_call_table(tmp_path: Path) -> None:
    if shutil.which("uftrace") is None or shutil.which("strip") is None:
        pytest.skip("uftrace or strip is not installed")
    require_backend("qemu")
    program, data = tmp_path / "stripped", tmp_path / "uftrace.data"
    subprocess.run(["strip", "-o", program, build_instrumented("threads.c")], check=True)
    record(program, "qemu", tmp_path)
    words = ["timeline", str(tmp_path / "data"), "--for", "uftrace", "-o", str(data)]
    assert main(words) == 0
    with Trace(tmp_path / "data") as trace:
        calls = trace.calls().rows()
        expected = Counter(call.function for call in calls if call.stop > call.first)
    rows = filter(None, map(REPORTED.fullmatch, uftrace("report", data, "-f", "call")))
    found = {row[2]: int(row[1]) for row in rows}
    assert found == expected
    assert any(name.startswith("stripped+0x") for name in found)


def test_folder_says_which_calls_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, _ = export("unwinding.c", tmp_path)
    data, _ = export("unwinding.c", tmp_path, "--max-calls", "10", "--max-depth", "6")
    note = capsys.readouterr().err.removeprefix("rtit timeline: ").strip()
    assert re.fullmatch("[0-9,]+ calls are not shown: .* nested 6 or more levels deep", note)
    assert note in "\n".join(uftrace("info", data))
    assert 0 < sum("[entry]" in line for line in uftrace("dump", data)) <= 10


def test_other_folders_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = recorded("threads.c", "qemu")
    for name in ("task.txt", "file"):
        (tmp_path / name).touch()
    assert main(["timeline", str(path), "--for", "uftrace", "-o", str(tmp_path)]) == 2
    assert "has other files, such as file: give a new folder" in capsys.readouterr().err
    assert {each.name for each in tmp_path.iterdir()} == {"task.txt", "file"}


def test_uftrace_folder_needs_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "--for", "uftrace", "absent.data"]) == 2
    assert "uftrace reads a folder: give its name" in capsys.readouterr().err
