"""The process tree of `rtit report`: totals, grouped lines, and counts of a real run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from signal import SIGSEGV

import pytest

from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.perfdata import ExitStatus
from rtit.sideband import Process, ProcessExit
from rtit.views.report import ProcessNode, format_tree
from support.recordings import record_to_end, require_backend, thread_ends

ProgramBuilder = Callable[[str], Path]


def node(pid: int, name: str, status: int, own: int, *children: ProcessNode) -> ProcessNode:
    process = Process(pid, None, 0, name, {pid}, True, ProcessExit(pid, pid, 1, ExitStatus(status)))
    total = own + sum(each.total_instructions or 0 for each in children)
    threads = 1 + sum(each.total_threads for each in children)
    return ProcessNode(process, own, total, threads, list(children))


def texts(*roots: ProcessNode) -> list[list[str]]:
    return [line.split(maxsplit=3) for line in list(format_tree(roots))[1:]]


def test_similar_processes_share_a_line() -> None:
    many = [node(pid, "true", 0, 10) for pid in range(2, 6)]
    other = node(6, "true", 0x100, 20)
    deeper = node(7, "true", 0, 30, node(8, "ls", 0, 5))
    assert texts(node(1, "sh", 0, 100, *many, other, deeper)) == [
        ["100", "195", "1", "1 sh: exit code 0"],
        ["40", "40", "4", "4 x true (2..5): exit code 0"],
        ["20", "20", "1", "6 true: exit code 1"],
        ["30", "35", "1", "7 true: exit code 0"],
        ["5", "5", "1", "8 ls: exit code 0"],
        ["195", "8", "in", "all 8 processes"],
    ]


def test_three_similar_processes_have_a_line_each() -> None:
    children = [node(pid, "true", 0, 10) for pid in range(2, 5)]
    assert len(texts(node(1, "sh", 0, 100, *children))) == 5


def test_deep_process_chain_keeps_lines_short() -> None:
    last = node(10_001, "a", 0, 1)
    for pid in range(10_000, 0, -1):
        last = node(pid, "a", 0, 1, last)
    made = list(format_tree([last]))
    assert len(made) == 10_003
    assert max(map(len, made)) < 120


@pytest.mark.parametrize("backend", ["qemu", "ptrace"])
def test_process_tree_counts_equal_truth(
    backend: str, program: ProgramBuilder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    require_backend(backend)
    data, truth = tmp_path / "data", tmp_path / "truth"
    exe = program("endings")
    record_to_end(
        start_recording(
            RecordRequest([str(exe), "child"], backend=backend, output=data, truth=truth)
        )
    )
    ran = {tid: count for tid, (_, count, _) in thread_ends(truth).items()}
    capfd.readouterr()
    main(["report", str(data), "--json"])
    report = json.loads(capfd.readouterr().out)
    parent, child = report["processes"]
    assert (parent["parent"], child["parent"]) == (None, parent["pid"])
    assert (parent["exit_code"], child["exit_code"], child["signal"]) == (7, None, SIGSEGV)
    assert {each["pid"]: each["instructions"] for each in (parent, child)} == ran
    assert parent["instructions_with_children"] == sum(ran.values())
    assert report["instructions"] == sum(ran.values())
    assert (parent["name"], child["name"]) == (exe.name[:15], exe.name[:15])
    main(["report", str(data)])
    text = capfd.readouterr().out
    assert f"{parent['pid']} {exe.name[:15]}: exit code 7" in text
    assert f"  {child['pid']} {exe.name[:15]}: SIGSEGV at address" in text
    main(["report", str(data), "--pid", str(child["pid"]), "--json"])
    only = json.loads(capfd.readouterr().out)
    assert [each["instructions"] for each in only["processes"]] == [0, ran[child["pid"]]]
