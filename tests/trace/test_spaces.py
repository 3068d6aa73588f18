"""Two programs at the same addresses in two address spaces: rows have their space."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import rtit
from rtit.cli.main import main
from rtit.errors import UsageError
from rtit.image import Image
from rtit.packets import encode
from rtit.trace import End, Selection, Settings, Stream, Trace

ROUNDS = 300
AT = 0x401000
ONE = """
one_first:  .byte 0x74, 0, 0xeb, 0          # je, jmp to what follows
one_second: .byte 0x74, 0, 0x0f, 0x01, 0xc2 # je to what follows, vmlaunch
one_back:   .byte 0x74, 0, 0xeb, 0xf3       # je to what follows, jmp one_first
"""
TWO = """
two_first:  .byte 0x90, 0x74, 0, 0x90, 0x90, 0x90
two_second: .byte 0x74, 0, 0x90, 0x90
"""
HOST, GUEST = 1, 2
# an iteration, by hand: (address, space of the instruction)
PATH = [
    *((AT + offset, HOST) for offset in (0, 2, 4, 6)),
    *((AT + offset, GUEST) for offset in (0, 1, 3, 4, 5, 6, 8)),
    *((AT + offset, HOST) for offset in (9, 11)),
]
IN = {
    "one_first": [(AT, HOST), (AT + 2, HOST)],
    "one_second": [(AT + 4, HOST), (AT + 6, HOST)],
    "one_back": [(AT + 9, HOST), (AT + 11, HOST)],
    "two_first": [(AT + offset, GUEST) for offset in (0, 1, 3, 4, 5)],
    "two_second": [(AT + 6, GUEST), (AT + 8, GUEST)],
}
# from, to, kind, and the spaces of both
BRANCHES = [
    (AT, AT + 2, End.CONDITIONAL, HOST, HOST),
    (AT + 2, AT + 4, End.JUMP, HOST, HOST),
    (AT + 4, AT + 6, End.CONDITIONAL, HOST, HOST),
    (AT + 6, AT, End.VM_ENTRY, HOST, GUEST),
    (AT + 1, AT + 3, End.CONDITIONAL, GUEST, GUEST),
    (AT + 6, AT + 8, End.CONDITIONAL, GUEST, GUEST),
    (AT + 9, AT + 11, End.CONDITIONAL, HOST, HOST),
    (AT + 11, AT, End.JUMP, HOST, HOST),
]


def ip(name: str, address: int) -> bytes:
    return encode(name, ip_bytes=6, payload=address)


def packets() -> bytes:
    host, guest = encode("PIP", cr3=0x5000, nr=0), encode("PIP", cr3=0x6000, nr=1)
    two = encode("TNT", bits="TT")
    entry, leave = guest + ip("TIP", AT), ip("FUP", AT + 9) + host + ip("TIP", AT + 9)
    begin = encode("PSB") + b"\x99\x01" + host + ip("FUP", AT) + encode("PSBEND")
    each = two + entry + two + leave + encode("TNT", bits="T")
    return begin + each * ROUNDS + ip("FUP", AT) + encode("TIP.PGD", ip_bytes=0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spaces")
    gcc = shutil.which("gcc") or pytest.skip("no gcc")
    flags = ["-nostdlib", "-static", f"-Wl,--build-id=none,-Ttext={AT:#x},-e,{AT:#x}"]
    for name, text in (("one", ONE), ("two", TWO)):
        labels = [line.partition(":")[0] for line in text.split("\n") if ":" in line]
        types = "".join(f".type {label}, @function\n" for label in labels)
        source = folder / f"{name}.s"
        source.write_text(types + text)
        subprocess.run([gcc, *flags, "-o", folder / name, source], check=True)
    (folder / "pt").write_bytes(packets())
    return folder


@pytest.fixture
def trace(files: Path) -> Trace:
    one, two = Image().add_elf(files / "one"), Image().add_elf(files / "two")
    return rtit.decode(packets(), spaces={(0x5000, 0): one, (0x6000, 1): two})


@pytest.fixture(params=["steps", "packet by packet"])
def stream(trace: Trace, request: pytest.FixtureRequest) -> Stream:
    (stream,) = trace.streams
    assert isinstance(stream.settings, Settings)
    walk = request.param != "steps"
    return replace(stream, settings=replace(stream.settings, walk=walk))


@pytest.fixture
def words(files: Path) -> list[str]:
    one, two = ["--cr3", "5000", "--elf", str(files / "one")], ["--cr3", "6000,1", "--elf"]
    return ["--raw", str(files / "pt"), "--cpu-model", "6/94/3", *one, *two, str(files / "two")]


def pairs(stream: Stream, where: Selection | None = None) -> list[tuple[int, int]]:
    columns = stream.instructions(where).columns()
    return list(zip(columns["ip"].tolist(), columns["space"].tolist(), strict=True))


def test_instructions_have_space_column(stream: Stream) -> None:
    assert pairs(stream) == PATH * ROUNDS
    assert [span.kind for span in stream.ledger()] == ["exact"]


def test_function_is_selected_in_its_space_only(stream: Stream) -> None:
    for name, expected in IN.items():
        assert pairs(stream, Selection(functions=(name,))) == expected * ROUNDS
    both = Selection(functions=("one_second", "two_second"))
    wanted = {*IN["one_second"], *IN["two_second"]}
    assert pairs(stream, both) == [each for each in PATH if each in wanted] * ROUNDS
    # addresses are the same in all
    some = Selection(ranges=((AT + 6, AT + 7),))
    assert pairs(stream, some) == [(AT + 6, HOST), (AT + 6, GUEST)] * ROUNDS


def test_blocks_have_space_column(stream: Stream) -> None:
    def ran(where: Selection | None = None) -> list[tuple[int, int, int]]:
        columns = stream.blocks(where).columns()
        names = ("start", "last", "space")
        return list(zip(*(columns[name].tolist() for name in names), strict=True))

    every = [
        *((AT, AT, HOST), (AT + 2, AT + 2, HOST), (AT + 4, AT + 4, HOST), (AT + 6, AT + 6, HOST)),
        *((AT, AT + 1, GUEST), (AT + 3, AT + 6, GUEST), (AT + 8, AT + 8, GUEST)),
        *((AT + 9, AT + 9, HOST), (AT + 11, AT + 11, HOST)),
    ]
    assert ran() == every * ROUNDS
    assert ran(Selection(functions=("two_second",))) == every[5:7] * ROUNDS
    rows = [space for part in stream.rows() for space in part.space.tolist()]
    assert rows == [space for _, _, space in every * ROUNDS]
    counted = stream.coverage()
    assert int(counted.count.sum()) == len(every) * ROUNDS
    assert set(counted.space.tolist()) == {HOST, GUEST}


def test_branches_and_edges_have_both_space_columns(stream: Stream) -> None:
    names = ("source", "target", "kind", "space", "target_space")
    columns = stream.branches().columns()
    found = list(zip(*(columns[name].tolist() for name in names), strict=True))
    assert found == [(*row[:2], int(row[2]), *row[3:]) for row in BRANCHES] * ROUNDS
    edges = stream.edges()
    assert set(edges.count.tolist()) == {ROUNDS}
    each = zip(*(edges.columns()[name].tolist() for name in names), strict=True)
    assert sorted(each) == sorted(found[: len(BRANCHES)])
    part = stream.edges(Selection(functions=("one_second",)))
    assert part.source.tolist() == [AT + 4, AT + 6]


def test_table_of_streams_has_the_space_columns(trace: Trace) -> None:
    table = trace.branches(Selection(functions=("one_second",)))
    assert [name for name, _, _ in table.fields][4:] == ["space", "target_space", "tid", "cpu"]
    assert len(table.columns()["source"]) == 2 * ROUNDS
    with pytest.raises(UsageError, match="no mapped file has this function"):
        trace.branches(Selection(functions=("three",)))


def test_single_space_has_no_space_column() -> None:
    (stream,) = rtit.decode(packets(), Image().add(AT, b"\x90")).streams
    assert (
        stream.branches().extra_columns
        == stream.blocks().extra_columns
        == stream.instructions().extra_columns
        == ()
    )


def printed_fields(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    assert main(list(words)) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_symbols_are_those_of_the_space(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def name(address: int, space: int) -> str:
        (found,) = [key for key, within in IN.items() if (address, space) in within]
        start = IN[found][0][0]
        return found if address == start else f"{found}+{address - start:#x}"

    ends = [(name(row[0], row[3]), name(row[1], row[4])) for row in BRANCHES]
    lines = printed_fields(capsys, "branches", *words)
    assert [(line[1], line[3]) for line in lines] == ends * ROUNDS
    lines = printed_fields(capsys, "edges", *words)
    assert sorted((line[2], line[4]) for line in lines) == sorted(ends)
    lines = printed_fields(capsys, "blocks", *words, "--function", "two_second")
    assert [line[1] for line in lines] == ["two_first+0x3", "two_second+0x2"] * ROUNDS
    for fields, offset in (("ip,sym", 1), ("ip,dso,sym", 2)):
        lines = printed_fields(capsys, "instructions", *words, "--fields", fields)
        assert [line[offset] for line in lines] == [name(*each) for each in PATH] * ROUNDS


def test_code_and_files_are_those_of_the_space(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ["--fields", "ip,dso,insn", "--range", f"{AT + 6:x}-{AT + 7:x}", "--head", "2"]
    lines = printed_fields(capsys, "instructions", *words, *shown)
    assert [(Path(line[1]).name, line[2:]) for line in lines] == [
        ("one", ["0f", "01", "c2"]),
        ("two", ["74", "00"]),
    ]


@pytest.mark.parametrize("fields", ["ip", "ip,bits"])
def test_function_selects_lines_of_one_space(
    fields: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, expected in IN.items():
        lines = printed_fields(
            capsys, "instructions", *words, "--fields", fields, "--function", name
        )
        assert [int(line[0], 16) for line in lines] == [at for at, _ in expected] * ROUNDS


def test_branches_have_spaces_as_objects(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["edges", *words, "--json", "--function", "one_second"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ends = [(each["source"], each["space"], each["target_space"]) for each in found]
    assert sorted(ends) == [(AT + 4, HOST, HOST), (AT + 6, HOST, GUEST)]
