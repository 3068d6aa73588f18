"""`rtit blocks`, `branches`, `edges`: the rows of the tables, as text and as JSON."""

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
from rtit.image import Location
from rtit.packets import encode
from rtit.trace import End, Selection
from support.recordings import Recorder
from support.streams import SYNC

CODE = bytes.fromhex("7502 90 90 75fa c3")
"""1000 jnz 1004; 1002 nop; 1003 nop; 1004 jnz 1000; 1006 ret"""
WALKED = SYNC + encode("TNT", bits="TTN") + encode("TIP.PGD", ip_bytes=0, payload=None)
BOUNDS = ("earliest", "latest")
TAKEN, NOT = "conditional", "not taken"
BRANCHES = [(0x1000, 0x1004, TAKEN), (0x1004, 0x1000, TAKEN), (0x1000, 0x1002, NOT)]


@pytest.fixture
def bare(tmp_path: Path) -> list[str]:
    (tmp_path / "pt.bin").write_bytes(WALKED)
    (tmp_path / "code.bin").write_bytes(CODE)
    return ["--raw", str(tmp_path / "pt.bin"), "--image", f"{tmp_path / 'code.bin'}@1000"]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[str]:
    capsys.readouterr()
    assert main(list(arguments)) == code
    return capsys.readouterr().out.splitlines()


def objects(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed(capsys, *arguments, "--json")]


def test_by_hand(bare: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Taken, taken back, not taken; tracing ends at the branch behind."""
    found = objects(capsys, "branches", *bare)[:3]
    assert [(each["source"], each["target"], each["kind"]) for each in found] == BRANCHES
    assert [
        (each["source"], each["target"], each["kind"], each["count"])
        for each in objects(capsys, "edges", *bare)
    ] == [(*edge, 1) for edge in sorted(BRANCHES, key=lambda edge: edge[:2])]
    blocks = objects(capsys, "blocks", *bare)
    assert [(each["start"], each["instructions"], each["end"]) for each in blocks][:2] == [
        (0x1000, 1, TAKEN),
        (0x1004, 1, TAKEN),
    ]
    first = printed(capsys, "branches", *bare, "--head", "1")
    assert [line.split() for line in first] == [["1000", "0x1000", "1004", "0x1004", TAKEN]]
    first = printed(capsys, "blocks", *bare, "--head", "1", "--timing")
    assert first[0].split()[1:] == ["-", "1000", "0x1000", "1", TAKEN]
    assert len(printed(capsys, "edges", *bare, "--top", "2")) == 2


def test_a_stream_without_a_psb(
    bare: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--start says how things are at the first byte."""
    (tmp_path / "pt.bin").write_bytes(WALKED.removeprefix(SYNC))
    found = objects(capsys, "branches", *bare, "--start", "1000")[:3]
    assert [(each["source"], each["target"], each["kind"]) for each in found] == BRANCHES
    for wrong in ("x", "1000,8", "1000,64,0,0", "1000,64,y", ""):
        assert printed(capsys, "branches", *bare, "--start", wrong, code=2) == []
    assert printed(capsys, "blocks", "--start", "1000", code=2) == []


def test_a_recording(record: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows are those of the tables, whole and chosen; the names those of the listing."""
    data = str(record([Path("/bin/echo"), "hello"]).data)
    where = Selection(functions=("_start",))
    with rtit.Trace(data) as trace:
        (stream,) = trace.threads
        for verb in ("blocks", "branches"):
            for chosen, options in ((None, ()), (where, ("--function", "_start"))):
                table = getattr(stream, verb)(chosen).columns()
                found = objects(capsys, verb, data, *options)
                for name in ("start", "source", "target", "time"):
                    if name in table:
                        assert [each[name] for each in found] == table[name].tolist()
                assert len(printed(capsys, verb, data, *options)) == len(found) > 0
        counts = [each["count"] for each in objects(capsys, "edges", data)]
        assert counts == sorted(counts, reverse=True)
        assert sum(counts) == stream.edges().count.sum()
    call = printed(capsys, "branches", data, "--head", "1")[0].split()
    listed = printed(capsys, "instructions", data, "--function", "_start", "--head", "2")[1]
    assert listed.split()[1:3] == call[1:3]
    assert call[4:] == ["_dl_start", "call"]


@pytest.mark.parametrize("verb", ["blocks", "branches", "edges"])
def test_what_is_not_there(
    verb: str, bare: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the code nothing can be followed: exit code 3, with the reason."""
    assert printed(capsys, verb, "--raw", bare[1], code=3) == []
    assert printed(capsys, verb, str(tmp_path / "nothing"), code=1) == []
    assert main([verb, *bare, "--function", "nobody"]) == 2
    assert "--function nobody: no mapped file has this function" in capsys.readouterr().err


def test_every_line(record: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    """The text is that of the values, one by one."""
    data = str(record([Path("/bin/echo"), "hello"]).data)
    with rtit.Trace(data) as trace:
        (stream,) = trace.threads
        clock = trace.clock
        assert clock is not None

        def name(time: int, ip: int) -> str:
            return f"{ip:16x} {trace.symbols.lookup(stream.tid, time, ip)!s:32}"

        def kind(end: End, otherwise: str) -> str:
            return otherwise if end is End.CUT else end.label

        branches = [
            f"{stream.tid:7} {name(each.time, each.source)} {name(each.time, each.target)} "
            f"{kind(each.kind, NOT)}"
            for each in stream.branches(Selection(tail=9000)).rows()
        ]
        blocks = [
            f"{stream.tid:7} {name(each.time, each.start)} {each.instructions:5} "
            f"{kind(each.end, 'cut')}"
            for each in stream.blocks(Selection(head=9000)).rows()
        ]
        timed = stream.blocks(Selection(head=50), timing=True).columns()
        bounds = [
            " ".join(f"{clock.to_nanoseconds(int(timed[end][row])):15}" for end in BOUNDS)
            for row in range(50)
        ]
        counts = stream.edges().count
    assert printed(capsys, "branches", data, "--tail", "9000") == branches
    assert printed(capsys, "blocks", data, "--head", "9000") == blocks
    shown = printed(capsys, "blocks", data, "--head", "50", "--timing")
    assert shown == [
        f"{line[:7]} {times} {line[8:]}" for line, times in zip(blocks, bounds, strict=False)
    ]
    found = [line[8:20] for line in printed(capsys, "edges", data)]
    assert found == [f"{each:12,}" for each in sorted(counts.tolist(), reverse=True)]


def test_edges_beyond_the_limit_are_told_of(
    bare: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["edges", *bare, "--json", "--max-edges", "2"]) == 3
    told = capsys.readouterr()
    found = [json.loads(line) for line in told.out.splitlines()]
    edges = sorted(BRANCHES, key=lambda edge: edge[:2])
    assert [(each["source"], each["target"], each["kind"]) for each in found] == edges[:2]
    sentence = "1 transfers are beyond --max-edges: they are only in the total"
    assert sentence in told.err
    assert main(["edges", *bare, "--max-edges", "3"]) == 0


def test_edges_that_are_wanted_are_counted_wherever_they_are(
    bare: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    edges = sorted(BRANCHES, key=lambda edge: edge[:2])
    only = ["edges", *bare, "--json", "--max-edges", "1"]
    for at in sorted({source for source, _, _ in edges}):
        wanted = [edge for edge in edges if edge[0] == at]
        # of two from one place there is one
        assert main([*only, "--range", f"{at:#x}-{at + 1:#x}"]) == 3 * (len(wanted) > 1)
        told = capsys.readouterr()
        (found,) = [json.loads(line) for line in told.out.splitlines()]
        assert (found["source"], found["target"]) == wanted[0][:2]
    assert main(only) == 3
    assert len(capsys.readouterr().out.splitlines()) == 1


EDGES = st.integers(0, (1 << 64) - 1) | st.sampled_from((0, 999, 1000, (1 << 63) - 1))
WORDS = ["", "ü", "call", "x" * 40]


@given(st.lists(st.tuples(EDGES, EDGES, st.integers(0, 5)), max_size=20))
def test_numbers_words_and_places(rows: list[tuple[int, int, int]]) -> None:
    numbers, offsets, which = (np.array([row[at] for row in rows], np.uint64) for at in range(3))
    names = [(word, at % 2 == 1) for at, word in enumerate(WORDS)]
    found = core.table_lines(
        [
            ("hexadecimal", numbers, 16),
            ("decimal", offsets, 5),
            ("commas", numbers, 12),
            ("signed", offsets, 7),
            ("places", which, offsets, names),
            ("words", which, WORDS),
        ]
    ).decode()
    wanted = ""
    for number, offset, at in rows:
        word = WORDS[at] if at < len(WORDS) else ""
        place = Location(word if at % 2 == 0 else "", offset, word if at % 2 == 1 else "")
        unknown = offset == (1 << 64) - 1
        signed = offset - (1 << 64 if offset >> 63 else 0)
        line = f"{number:16x} {'-' if unknown else offset:>5} {number:12,} {signed:7} {place!s:32}"
        wanted += f"{line} {word}".rstrip() + "\n"
    assert found == wanted


def test_columns_that_cannot_be() -> None:
    one = np.zeros(1, np.uint64)
    wrong: list[Any] = [("octal", one, 3), ("words", one, 3), ("hexadecimal", one, 1 << 40)]
    wrong += [("words", one, one, []), ("commas", one, ["x"]), ("decimal", b"x", 1), (1, one, 2)]
    for column in wrong:
        with pytest.raises((ValueError, TypeError, BufferError)):
            core.table_lines([column])


@pytest.mark.parametrize("verb", ["blocks", "branches", "edges"])
def test_threads_change_nothing(
    capsys: pytest.CaptureFixture[str], bare: list[str], verb: str
) -> None:
    pt = Path(bare[1])
    pt.write_bytes((SYNC + encode("TNT", bits="TTTTTT")) * 8000)  # several segments
    one = printed(capsys, verb, *bare, "--jobs", "1")
    assert len(one) >= 2
    for threads in ("2", "3"):
        same = printed(capsys, verb, *bare, "--jobs", threads) == one
        assert same
    assert main([verb, *bare, "--jobs", "256"]) == 2
    assert "--jobs 256: expected" in capsys.readouterr().err
