"""SQL queries over the tables of a trace, and the Parquet files of `rtit export`."""

from __future__ import annotations

import gc
import json
import subprocess
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rtit
from rtit.cli.main import main
from rtit.errors import UsageError
from rtit.packets import encode
from rtit.query import TABLES, Database
from rtit.trace import Branches, Table, Trace
from support.duckdb_files import ParquetQuery
from support.recordings import RTIT, Recorder
from support.streams import SYNC

pytest.importorskip("duckdb", minversion="2", reason="duckdb 2 is not installed")

CODE = bytes.fromhex("7502 90 90 75fa c3")
"""1000 jnz 1004; 1002 nop; 1003 nop; 1004 jnz 1000; 1006 ret"""
PACKETS = SYNC + encode("TNT", bits="TTN") + encode("TIP.PGD", ip_bytes=0, payload=None)
BACK = encode("TIP", ip_bytes=6, payload=0x1000)


@pytest.fixture
def trace() -> Trace:
    return rtit.decode(PACKETS, rtit.Image().add(0x1000, CODE))


@pytest.fixture
def raw_options(tmp_path: Path) -> list[str]:
    (tmp_path / "pt.bin").write_bytes(PACKETS)
    (tmp_path / "code.bin").write_bytes(CODE)
    return ["--raw", str(tmp_path / "pt.bin"), "--image", f"{tmp_path / 'code.bin'}@1000"]


@pytest.fixture(scope="module")
def data(record: Recorder) -> str:
    return str(record([Path("/bin/echo"), "hello"]).data)


def rows_of(trace: Trace, query: str) -> list[tuple[Any, ...]]:
    with Database(trace) as database:
        return [row for part in database.execute(query).parts() for row in part]


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == code
    return capsys.readouterr().out


def json_rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output_of(capsys, *arguments).splitlines()]


def test_queries_return_the_rows_of_a_hand_written_trace(trace: Trace) -> None:
    """The branches are taken, taken back, and not taken; tracing ends at the next branch."""
    branches = "select source, target, kind from branches"
    expected = [(0x1000, 0x1004, "conditional"), (0x1004, 0x1000, "conditional")]
    assert rows_of(trace, f"{branches} limit 3") == [*expected, (0x1000, 0x1002, "not taken")]
    edges = "select source, target, kind, count from edges order by all"
    assert rows_of(trace, edges)[0] == (0x1000, 0x1002, "not taken", 1)
    assert rows_of(trace, "select ip from instructions") == [
        (each,) for each in (0x1000, 0x1004, 0x1000, 0x1002, 0x1003, 0x1004)
    ]
    assert rows_of(trace, "select start, instructions from blocks limit 1") == [(0x1000, 1)]
    packets = rows_of(trace, 'select kind, size, "offset" from packets')
    assert packets[0] == ("PSB", 16, 0)
    assert packets[-2:] == [("TNT", 1, len(PACKETS) - 2), ("TIP.PGD", 1, len(PACKETS) - 1)]
    assert rows_of(trace, "select event from events")[-1] == ("disabled",)


def test_rows_equal_those_of_the_commands(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, columns in (
        ("branches", "source target kind time"),
        ("blocks", 'start instructions last "end" time'),
        ("edges", "source target kind count"),
        ("events", 'event time "offset" details'),
    ):
        names = [each.strip('"') for each in columns.split()]
        query = f"select {', '.join(columns.split())} from {command}"
        if command == "edges":
            query += " order by count desc, source, target"
        found = json_rows(capsys, "query", data, query, "--format", "json")
        listed = json_rows(capsys, command, data, "--json")
        if command == "events":
            found = [row | json.loads(row.pop("details")) for row in found]
            for row in listed:
                del row["stream"], row["nanoseconds"], row["row"]
            assert found == listed
        else:
            assert found == [{name: row[name] for name in names} for row in listed]
        assert found
    packets = json_rows(capsys, "query", data, "from packets", "--format", "json")
    listed = json_rows(capsys, "packets", data, "--json")
    assert [(row["kind"], row["offset"]) for row in packets] == [
        (row["name"], row["offset"]) for row in listed
    ]


def test_instructions_and_calls_equal_those_of_the_commands(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--function", "_dl_start"]
    query = "select index, hex(ip) as ip, function from instructions"
    found = json_rows(capsys, "query", data, query, *where, "--format", "json")
    listed = output_of(capsys, "instructions", data, "--fields", "index,ip,function", *where)
    assert [[str(value) for value in row.values()] for row in found] == [
        [index, ip.upper(), function] for index, ip, function in map(str.split, listed.splitlines())
    ]

    report = json.loads(output_of(capsys, "report", data, "--sort", "self", "--json"))["calls"]
    functions = "select * from functions order by self_instructions desc, function, module"
    found = json_rows(capsys, "query", data, functions, "--format", "json")
    assert [tuple(row.values()) for row in found] == [
        tuple(row[name] for name in ("function", "module", "calls", "self", "total"))
        for row in report
    ]
    calls = "select function, sum(self_instructions) as self from calls group by all order by all"
    by_function: dict[str, int] = {}
    for row in report:
        by_function[row["function"]] = by_function.get(row["function"], 0) + row["self"]
    found = json_rows(capsys, "query", data, calls, "--format", "json")
    assert {row["function"]: row["self"] for row in found} == by_function


def test_edges_have_the_names_of_both_ends(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select function, target_function from edges where kind = 'call' order by source"
    found = json_rows(capsys, "query", data, query, "--format", "json")
    assert {"function": "_start", "target_function": "_dl_start"} in found


def test_costly_columns_exist_only_if_the_query_names_them(trace: Trace) -> None:
    with Database(trace) as database:
        plain = database.execute("select * from blocks").columns
        assert plain == [
            *("start", "instructions", "last", "end", "bits", "in_tx", "time", "offset"),
            *("tid", "cpu"),
        ]
        wide = database.execute("select * from blocks where line >= 0 and latest > 0").columns
        assert set(wide) - set(plain) == {
            "line",
            "earliest",
            "latest",
            "cycles",
            "frequency",
            "ipc",
        }


def test_query_decodes_only_the_tables_that_it_names(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(type(trace), "blocks", refuse)
    monkeypatch.setattr(type(trace), "branches", refuse)
    assert rows_of(trace, "select count(*) from packets")[0][0] > 0
    with pytest.raises(AssertionError, match="decoded"):
        rows_of(trace, "select count(*) from blocks")


def test_batches_are_released_while_a_query_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = rtit.decode(SYNC + BACK * 1_000_000, rtit.Image().add(0x1000, b"\xff\xe0"))
    branches, alive, most, batches = Trace.branches, weakref.WeakSet[Branches](), 0, 0

    def watched(*arguments: Any, **options: Any) -> Table[Branches]:
        table = branches(*arguments, **options)

        def watch() -> Iterator[Branches]:
            nonlocal most, batches
            for batch in table:
                alive.add(batch)
                most, batches = max(most, len(alive)), batches + 1
                yield batch

        return Table(Branches, watch, table.extra_columns)

    monkeypatch.setattr(type(trace), "branches", watched)
    query = "select count(*), count(distinct source + time) from branches"
    assert rows_of(trace, query) == [(1_000_000, 1)]
    assert batches > 10
    assert most <= 4
    gc.collect()
    assert not alive

    most = batches = 0
    with Database(trace) as database:
        parts = database.execute("select * from branches").parts()
        assert len(next(parts)) > 0
        assert batches <= 8  # the rest is decoded when its rows are read
        assert sum(map(len, parts)) > 900_000
    assert most <= 8


def test_settings_of_the_database_are_locked(trace: Trace) -> None:
    names = ("enable_external_access", "lock_configuration", "autoload_known_extensions")
    settings = ", ".join(f"current_setting('{name}')" for name in names)
    assert rows_of(trace, f"select {settings}") == [(False, True, False)]


def test_a_query_reads_several_tables(trace: Trace) -> None:
    many = rtit.decode(SYNC + BACK * 300_000, rtit.Image().add(0x1000, b"\xff\xe0"))
    tables = ("branches", "blocks", "instructions", "branches")
    union = " union all ".join(f"select count(*) from {name}" for name in tables)
    assert [count for (count,) in rows_of(many, union)] == [300_000] * 4
    joined = "select count(*) from branches join blocks on target = start and source = 4100"
    assert rows_of(trace, joined) == [(2,)]


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('{file}')",
        "select * from '{file}'",
        "select * from glob('/etc/*')",
        "select * from read_text('/proc/self/environ')",
        "copy blocks to '{new}'",
        "copy (select 1) to '{new}'",
        "attach '{new}'",
        "install httpfs",
        "load '{file}'",
        "select * from 'https://127.0.0.1/x.parquet'",
        "set enable_external_access = true",
        "select 1; select 2",
        "create table x as select 1",
        "select * from duckdb",
        "",
    ],
)
def test_query_cannot_reach_files_or_settings(query: str, trace: Trace, tmp_path: Path) -> None:
    file, new = tmp_path / "data.csv", tmp_path / "new"
    file.write_text("a,b\n1,2\n")
    with Database(trace) as database, pytest.raises(UsageError):
        database.execute(query.format(file=file, new=new))
    assert not new.exists()


def test_errors_are_one_sentence_with_a_hint(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    for query, sentence, hint in (
        ("selec", 'Parser Error: syntax error at or near "selec"', "LINE 1: selec"),
        ("from nothing", "Catalog Error: Table with name nothing does not", "tables: packets"),
        ("drop table blocks", "a query is one SELECT statement", "usage: rtit query"),
        ("from read_csv('/x')", "Permission Error", "a query reads the tables of the recording"),
    ):
        assert main(["query", data, query]) == 2
        first, second, *_ = capsys.readouterr().err.splitlines()
        assert first.startswith(f"rtit query: {sentence}")
        assert second.startswith(f"  {hint}")
    assert main(["query", data, "from blocks", "--format", "parquet"]) == 2
    assert "--format parquet needs a file: -o FILE" in capsys.readouterr().err


def test_error_of_decoding_is_raised_as_it_was() -> None:
    failing = rtit.decode([SYNC, 5], rtit.Image())  # type: ignore[list-item]
    with pytest.raises(UsageError, match=r"^piece 1 of the stream"):
        rows_of(failing, "select count(*) from branches")
    trace = rtit.decode(PACKETS, rtit.Image().add(0x1000, CODE))
    where = rtit.Selection(functions=("absent",))
    with Database(trace, where) as database, pytest.raises(UsageError, match="no mapped file"):
        database.execute("select * from branches")


def test_undecoded_bytes_give_exit_code_3(
    raw_options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pt.bin").write_bytes(SYNC + b"\x05" + PACKETS)
    for table in ("branches", "packets"):
        assert main(["query", *raw_options, f"select count(*) from {table}"]) == 3
        assert "undefined packet opcode 05" in capsys.readouterr().err
    assert main(["query", *raw_options[:2], "select count(*) from branches"]) == 3
    assert main(["query", *raw_options[:2], "select 1"]) == 0


def test_formats_escape_texts_and_write_nulls(
    raw_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    query = "select 'a' || chr(27) || '[31m,\"' as x, null as n, 1.5::double as f, nan as q"
    query = query.replace("nan as q", "'nan'::double as q, [1, 2] as l, sum(2**70::hugeint) as s")
    command = ("query", *raw_options, query)
    assert output_of(capsys, *command).splitlines()[2].split() == [
        *('a\\x1b[31m,"', "1.5", "nan", "[1,", "2]", str(float(2**70))),
    ]
    assert output_of(capsys, *command, "--format", "csv").splitlines() == [
        "x,n,f,q,l,s",
        f'"a\\x1b[31m,""",,1.5,nan,"[1, 2]",{float(2**70)}',
    ]
    (row,) = json_rows(capsys, *command, "--format", "json")
    assert row == {"x": 'a\x1b[31m,"', "n": None, "f": 1.5, "q": None, "l": [1, 2], "s": 2**70}


def test_parquet_file_has_the_rows_of_the_query(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], query_parquet: ParquetQuery
) -> None:
    file = tmp_path / "branches.parquet"
    for limit, end in ((1000, " -- comment"), (10, "; -- comment")):  # the second file replaces
        query = f"select source, kind from branches limit {limit}"
        output_of(capsys, "query", data, query + end, *_parquet(file))
        found = query_parquet("select source, kind from read_parquet($1)", [str(file)])
        with Trace(data) as trace:
            assert found == rows_of(trace, query)
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    before = file.read_bytes()
    assert main(["query", data, "select nothing from branches", *_parquet(file)]) == 2
    assert file.read_bytes() == before


def _parquet(file: Path) -> list[str]:
    return ["--format", "parquet", "-o", str(file)]


def test_export_writes_a_file_for_each_table(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], query_parquet: ParquetQuery
) -> None:
    folder = tmp_path / "tables"
    for _ in range(2):
        output_of(capsys, "export", data, "--to", str(folder))
    assert {each.stem for each in folder.iterdir()} == TABLES.keys() - {"instructions"}
    with Trace(data) as trace:
        for file in folder.iterdir():
            expected = rows_of(trace, f"select count(*) from {file.stem}")
            found = query_parquet("select count(*) from read_parquet($1)", [str(file)])
            assert found == expected
        started = "select count(*) from branches where function = '_start' and file is not null"
        path = str(folder / "branches.parquet")
        query = started.replace("branches", "read_parquet($1)")
        assert query_parquet(query, [path]) == rows_of(trace, started) > [(0,)]
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.read_parquet(folder / "edges.parquet")
    edges = json_rows(capsys, "edges", data, "--json")
    assert frame["count"].sum() == sum(row["count"] for row in edges)
    (folder / "notes.txt").write_text("mine")
    assert main(["export", data, "--to", str(folder)]) == 2
    assert "has other files, such as notes.txt" in capsys.readouterr().err
    assert main(["export", data, "--to", str(tmp_path / "x"), "--tables", "blocks,nothing"]) == 2
    assert "--tables: unknown table 'nothing'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_options_may_be_anywhere(
    raw_options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    select, csv = "select 1 as x", ["--format", "csv"]
    for words in (
        [select, *raw_options, *csv],
        [*raw_options, select, *csv],
        [*csv, *raw_options, select],
    ):
        assert output_of(capsys, "query", *words) == "x\n1\n"
    missing = str(tmp_path / "nothing")
    for words in ([missing, select, *csv], [missing, *csv, select], [*csv, missing, select]):
        assert main(["query", *words]) == 1
        assert f"no recording at {missing}" in capsys.readouterr().err
    for words in ([], csv):
        with pytest.raises(SystemExit):
            main(["query", *words])
        assert "the following arguments are required: SQL" in capsys.readouterr().err


def test_missing_duckdb_is_one_sentence(data: str) -> None:
    for command in (["query", data, "select 1"], ["export", data, "--to", "x"]):
        without = "import sys; sys.modules['duckdb'] = None\n"
        without += "from rtit.cli.main import main; sys.exit(main(sys.argv[1:]))"
        ended = subprocess.run(
            [RTIT[0], "-c", without, *command], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 1
        sentence = "queries need DuckDB 2: pip install 'rtit[query]'"
        assert ended.stderr == f"rtit {command[0]}: {sentence}\n"
