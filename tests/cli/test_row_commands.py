"""`rtit blocks`, `branches`, `edges`: rows of the tables, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from rtit import _core as core
from rtit.cli.main import main
from rtit.image import SymbolLocation
from rtit.packets import encode
from rtit.trace import End, Selection
from support.recordings import Recorder
from support.streams import SYNC

CODE = bytes.fromhex("7502 90 90 75fa c3")
"""1000 jnz 1004; 1002 nop; 1003 nop; 1004 jnz 1000; 1006 ret"""
PACKETS = SYNC + encode("TNT", bits="TTN") + encode("TIP.PGD", ip_bytes=0, payload=None)
BOUNDS = ("earliest", "latest")
TAKEN, NOT_TAKEN = "conditional", "not taken"
BRANCHES = [(0x1000, 0x1004, TAKEN), (0x1004, 0x1000, TAKEN), (0x1000, 0x1002, NOT_TAKEN)]


@pytest.fixture
def raw_options(tmp_path: Path) -> list[str]:
    (tmp_path / "pt.bin").write_bytes(PACKETS)
    (tmp_path / "code.bin").write_bytes(CODE)
    return ["--raw", str(tmp_path / "pt.bin"), "--image", f"{tmp_path / 'code.bin'}@1000"]


def output_lines(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[str]:
    capsys.readouterr()
    assert main(list(arguments)) == code
    return capsys.readouterr().out.splitlines()


def json_rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output_lines(capsys, *arguments, "--json")]


def test_row_commands_list_branches_edges_blocks_of_hand_written_trace(
    raw_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The branches are taken, taken back, and not taken; tracing ends at the next branch."""
    found = json_rows(capsys, "branches", *raw_options)[:3]
    assert [(each["source"], each["target"], each["kind"]) for each in found] == BRANCHES
    assert [
        (each["source"], each["target"], each["kind"], each["count"])
        for each in json_rows(capsys, "edges", *raw_options)
    ] == [(*edge, 1) for edge in sorted(BRANCHES, key=lambda edge: edge[:2])]
    blocks = json_rows(capsys, "blocks", *raw_options)
    assert [(each["start"], each["instructions"], each["end"]) for each in blocks][:2] == [
        (0x1000, 1, TAKEN),
        (0x1004, 1, TAKEN),
    ]
    first = output_lines(capsys, "branches", *raw_options, "--head", "1")
    assert [line.split() for line in first] == [["1000", "0x1000", "1004", "0x1004", TAKEN]]
    first = output_lines(capsys, "blocks", *raw_options, "--head", "1", "--timing")
    assert first[0].split()[1:] == ["-", "1000", "0x1000", "1", TAKEN]
    assert len(output_lines(capsys, "edges", *raw_options, "--top", "2")) == 2


def test_start_option_decodes_a_stream_without_psb(
    raw_options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--start gives the state at the first byte."""
    (tmp_path / "pt.bin").write_bytes(PACKETS.removeprefix(SYNC))
    found = json_rows(capsys, "branches", *raw_options, "--start", "1000")[:3]
    assert [(each["source"], each["target"], each["kind"]) for each in found] == BRANCHES
    for wrong in ("x", "1000,8", "1000,64,0,0", "1000,64,y", ""):
        assert output_lines(capsys, "branches", *raw_options, "--start", wrong, code=2) == []
    assert output_lines(capsys, "blocks", "--start", "1000", code=2) == []


def test_rows_equal_the_tables_of_the_library(
    record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both complete tables and selections; symbol names equal those of the listing."""
    data = str(record([Path("/bin/echo"), "hello"]).data)
    where = Selection(functions=("_start",))
    with rtit.Trace(data) as trace:
        (stream,) = trace.threads
        for command in ("blocks", "branches"):
            for chosen, options in ((None, ()), (where, ("--function", "_start"))):
                table = getattr(stream, command)(chosen).columns()
                found = json_rows(capsys, command, data, *options)
                for symbol in ("start", "source", "target", "time"):
                    if symbol in table:
                        assert [each[symbol] for each in found] == table[symbol].tolist()
                assert len(output_lines(capsys, command, data, *options)) == len(found) > 0
        counts = [each["count"] for each in json_rows(capsys, "edges", data)]
        assert counts == sorted(counts, reverse=True)
        assert sum(counts) == stream.edges().count.sum()
    call = output_lines(capsys, "branches", data, "--head", "1")[0].split()
    listed = output_lines(capsys, "instructions", data, "--function", "_start", "--head", "2")[1]
    assert listed.split()[1:3] == call[1:3]
    assert call[4:] == ["_dl_start", "call"]


@pytest.mark.parametrize("command", ["blocks", "branches", "edges"])
def test_missing_code_file_or_function_is_reported(
    command: str, raw_options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without code, nothing can be followed: exit code 3, with the reason."""
    assert output_lines(capsys, command, "--raw", raw_options[1], code=3) == []
    assert output_lines(capsys, command, str(tmp_path / "nothing"), code=1) == []
    assert main([command, *raw_options, "--function", "absent"]) == 2
    assert "--function absent: no mapped file has this function" in capsys.readouterr().err


def test_text_lines_show_the_values_of_the_tables(
    record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(record([Path("/bin/echo"), "hello"]).data)
    with rtit.Trace(data) as trace:
        (stream,) = trace.threads
        clock = trace.clock
        assert clock is not None

        def symbol(time: int, ip: int) -> str:
            # The target of a system call is 0: unknown.
            name = str(trace.symbols.lookup(stream.tid, time, ip)) if ip else "-"
            return f"{ip:16x} {name:32}"

        def branch_text(end: End, otherwise: str) -> str:
            return otherwise if end is End.CUT else end.label

        branches = [
            f"{stream.tid:7} {symbol(each.time, each.source)} {symbol(each.time, each.target)} "
            f"{branch_text(each.kind, NOT_TAKEN)}"
            for each in stream.branches(Selection(tail=9000)).rows()
        ]
        blocks = [
            f"{stream.tid:7} {symbol(each.time, each.start)} {each.instructions:5} "
            f"{branch_text(each.end, 'cut')}"
            for each in stream.blocks(Selection(head=9000)).rows()
        ]
        timed = stream.blocks(Selection(head=50), timing=True).columns()
        bounds = [
            " ".join(f"{clock.to_nanoseconds(int(timed[end][row])):15}" for end in BOUNDS)
            for row in range(50)
        ]
        counts = stream.edges().count
    assert output_lines(capsys, "branches", data, "--tail", "9000") == branches
    assert output_lines(capsys, "blocks", data, "--head", "9000") == blocks
    shown = output_lines(capsys, "blocks", data, "--head", "50", "--timing")
    assert shown == [
        f"{line[:7]} {times} {line[8:]}" for line, times in zip(blocks, bounds, strict=False)
    ]
    found = [line[8:20] for line in output_lines(capsys, "edges", data)]
    assert found == [f"{each:12,}" for each in sorted(counts.tolist(), reverse=True)]


def test_edges_beyond_max_edges_are_reported(
    raw_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["edges", *raw_options, "--json", "--max-edges", "2"]) == 3
    printed = capsys.readouterr()
    found = [json.loads(line) for line in printed.out.splitlines()]
    edges = sorted(BRANCHES, key=lambda edge: edge[:2])
    assert [(each["source"], each["target"], each["kind"]) for each in found] == edges[:2]
    sentence = "1 transfers are beyond --max-edges: they are only in the total"
    assert sentence in printed.err
    assert main(["edges", *raw_options, "--max-edges", "3"]) == 0


def test_max_edges_applies_to_selected_edges_only(
    raw_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    edges = sorted(BRANCHES, key=lambda edge: edge[:2])
    only = ["edges", *raw_options, "--json", "--max-edges", "1"]
    for address in sorted({source for source, _, _ in edges}):
        wanted = [edge for edge in edges if edge[0] == address]
        # of two edges from one address, one is counted
        assert main([*only, "--range", f"{address:#x}-{address + 1:#x}"]) == 3 * (len(wanted) > 1)
        printed = capsys.readouterr()
        (found,) = [json.loads(line) for line in printed.out.splitlines()]
        assert (found["source"], found["target"]) == wanted[0][:2]
    assert main(only) == 3
    assert len(capsys.readouterr().out.splitlines()) == 1


EDGES = st.integers(0, (1 << 64) - 1) | st.sampled_from((0, 999, 1000, (1 << 63) - 1))
WORDS = ["", "ü", "call", "x" * 40]


@given(st.lists(st.tuples(EDGES, EDGES, st.integers(0, 5)), max_size=20))
def test_table_lines_formats_each_column_kind(rows: list[tuple[int, int, int]]) -> None:
    numbers, offsets, which = (
        np.array([row[address] for row in rows], np.uint64) for address in range(3)
    )
    names = [(word, address % 2 == 1) for address, word in enumerate(WORDS)]
    found = core.table_lines(
        [
            ("hexadecimal", numbers, 16),
            ("decimal", offsets, 5),
            ("commas", numbers, 12),
            ("signed", offsets, 7),
            ("locations", which, offsets, names),
            ("words", which, WORDS),
        ]
    ).decode()
    wanted = ""
    for number, offset, address in rows:
        word = WORDS[address] if address < len(WORDS) else ""
        location = SymbolLocation(
            word if address % 2 == 0 else "", offset, word if address % 2 == 1 else ""
        )
        unknown = offset == (1 << 64) - 1
        signed = offset - (1 << 64 if offset >> 63 else 0)
        line = (
            f"{number:16x} {'-' if unknown else offset:>5} {number:12,} {signed:7} {location!s:32}"
        )
        wanted += f"{line} {word}".rstrip() + "\n"
    assert found == wanted


def test_table_lines_rejects_invalid_columns() -> None:
    one = np.zeros(1, np.uint64)
    wrong: list[Any] = [("octal", one, 3), ("words", one, 3), ("hexadecimal", one, 1 << 40)]
    wrong += [("words", one, one, []), ("commas", one, ["x"]), ("decimal", b"x", 1), (1, one, 2)]
    for column in wrong:
        with pytest.raises((ValueError, TypeError, BufferError)):
            core.table_lines([column])


@pytest.mark.parametrize("command", ["blocks", "branches", "edges"])
def test_number_of_jobs_does_not_change_the_rows(
    capsys: pytest.CaptureFixture[str], raw_options: list[str], command: str
) -> None:
    pt = Path(raw_options[1])
    pt.write_bytes((SYNC + encode("TNT", bits="TTTTTT")) * 8000)  # several segments
    one = output_lines(capsys, command, *raw_options, "--jobs", "1")
    assert len(one) >= 2
    for threads in ("2", "3"):
        same = output_lines(capsys, command, *raw_options, "--jobs", threads) == one
        assert same
    assert main([command, *raw_options, "--jobs", "256"]) == 2
    assert "--jobs 256: expected" in capsys.readouterr().err
