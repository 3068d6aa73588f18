"""Tables have the position, function and source line of their rows on request."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from calls.instrumented import coroutine_stream, recorded
from programs.build import SOURCES, compiled
from rtit.capture.events import EventFlag, EventKind
from rtit.capture.ptrace.session import replay_events
from rtit.cli.main import main
from rtit.errors import UsageError
from rtit.packets import encode
from rtit.perfdata import SwitchRecords
from rtit.trace import BranchKind, CallKind, Trace
from support.recordings import RTIT, RecordedProgram, Recorder, require_backend
from support.streams import make_stream

ProgramBuilder = Callable[[str], Path]
INDEX = ["index"]
SOURCE = ["function", "file", "line"]


def executed_branches(live: RecordedProgram) -> dict[int, list[tuple[int, int, int]]]:
    """Return what the recorder saw: IP, kind and position of each branch, by thread."""
    kinds = {
        EventKind.CONDITIONAL: BranchKind.CONDITIONAL,
        EventKind.JUMP: BranchKind.JUMP,
        EventKind.CALL: BranchKind.CALL,
        EventKind.INDIRECT_JUMP: BranchKind.INDIRECT_JUMP,
        EventKind.INDIRECT_CALL: BranchKind.INDIRECT_CALL,
        EventKind.RETURN: BranchKind.RETURN,
        EventKind.FAR: BranchKind.FAR,
        EventKind.SYSCALL: BranchKind.SYSCALL,
    }
    found: dict[int, list[tuple[int, int, int]]] = {}
    for event in live.log.events():
        if event.kind in kinds:
            falls = event.kind == EventKind.CONDITIONAL and not (
                event.flags & EventFlag.CONDITIONAL_TAKEN
            )
            kind = BranchKind.NOT_TAKEN if falls else kinds[event.kind]
            found.setdefault(event.tid, []).append((event.ip, int(kind), event.extra - 1))
    return found


@pytest.mark.parametrize("name", ["threads", "signal_nested", "interrupted", "far", "fork"])
def test_branches_have_the_positions_and_system_calls_that_ran(
    name: str, program: ProgramBuilder, record: Recorder
) -> None:
    live = record([program(name)])
    expected = executed_branches(live)
    assert len(expected) == {"threads": 5, "fork": 4}.get(name, 1)
    with Trace(live.data) as trace:
        rows = trace.branches(extra_columns=INDEX).columns()
        plain = trace.branches().columns()
    for tid, executed in expected.items():
        own = rows["tid"] == tid
        columns = (rows[column][own].tolist() for column in ("source", "kind", "index"))
        assert [*zip(*columns, strict=True)] == executed
    is_call = rows["kind"] == BranchKind.SYSCALL
    assert is_call.any()
    assert not rows["target"][is_call].any()
    assert rows["target"][~is_call].all()
    for column, values in plain.items():
        assert values.tolist() == rows[column].tolist()


def test_interrupt_80h_is_a_system_call_among_branches(
    program: ProgramBuilder, record: Recorder
) -> None:
    path = program("int80")
    live = record([path])
    if live.stdout != "pids 3\n":
        pytest.skip("this kernel makes no 32-bit system calls for 64-bit programs")
    printed = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    [interrupt] = (int(line.split()[0], 16) for line in printed.splitlines() if "interrupt" in line)
    with Trace(live.data) as trace:
        rows = trace.branches(extra_columns=INDEX).columns()
        instructions = trace.instructions().columns()["ip"]
    here = rows["source"] == interrupt
    assert rows["kind"][here].tolist() == [BranchKind.SYSCALL] * 3
    assert rows["target"][here].tolist() == [0] * 3
    # The instruction does not count as executed: the index is that of the next one.
    assert instructions[rows["index"][here]].tolist() == [interrupt + 2] * 3
    system_calls = [event for event in live.log.events() if event.kind == EventKind.SYSCALL]
    assert (rows["kind"] == BranchKind.SYSCALL).sum() == 3 + len(system_calls)


def assert_indexes_are_positions(trace: Trace) -> None:
    """The indexes of all tables, and those of calls, lead to the same instructions."""
    instructions = trace.instructions(extra_columns=INDEX).columns()
    blocks = trace.blocks(extra_columns=INDEX).columns()
    branches = trace.branches(extra_columns=INDEX).columns()
    calls = trace.calls().columns()
    for tid, cpu in {*zip(instructions["tid"].tolist(), instructions["cpu"].tolist(), strict=True)}:

        def of_thread(columns: dict[str, Any]) -> dict[str, Any]:
            own = (columns["tid"] == tid) & (columns["cpu"] == cpu)  # noqa: B023 - used at once
            return {name: column[own] for name, column in columns.items()}

        ips, rows = of_thread(instructions)["ip"], of_thread(blocks)
        assert of_thread(instructions)["index"].tolist() == [*range(len(ips))]
        assert ips[rows["index"]].tolist() == rows["start"].tolist()
        assert ips[rows["index"] + rows["instructions"] - 1].tolist() == rows["last"].tolist()
        of_branches, of_calls = of_thread(branches), of_thread(calls)
        assert ips[of_branches["index"]].tolist() == of_branches["source"].tolist()
        assert len(of_branches["index"]) == len(set(of_branches["index"].tolist()))
        entries = dict(zip(rows["index"].tolist(), rows["start"].tolist(), strict=True))
        is_call = of_calls["kind"] == CallKind.CALL
        firsts, starts = (of_calls[name][is_call].tolist() for name in ("first", "entry"))
        assert [entries[first] for first in firsts] == starts


@pytest.mark.parametrize(("name", "cpus"), [("threads", 0), ("fork", 1)])
def test_indexes_of_threads_are_those_of_their_calls(
    name: str, cpus: int, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    live = record([program(name)])
    data = live.data
    if cpus:
        data = tmp_path / "perf.data"
        switches = SwitchRecords.CPU_WIDE
        replay_events(live.log, data, event="intel_pt//u", cpus=cpus, switches=switches)
    with Trace(data) as trace:
        assert all((stream.cpu < 0) == (cpus == 0) for stream in trace.streams)
        assert_indexes_are_positions(trace)


@given(seed=st.integers(0, 2**32 - 1), pieces=st.integers(1, 8))
def test_indexes_count_what_was_decoded_around_lost_packets(seed: int, pieces: int) -> None:
    data, image = coroutine_stream()
    data, random = data[: 1 << 12], Random(seed)
    cuts = sorted(random.randrange(len(data)) for _ in range(2 * pieces))
    kept = [data[start:end] for start, end in zip([0, *cuts[1::2]], cuts[::2], strict=False)]
    assert_indexes_are_positions(rtit.decode(b"".join([*kept, data[cuts[-1] :]]), image))


def test_selected_rows_keep_their_index_and_source() -> None:
    path, _ = recorded("unwinding.c", "qemu")
    with Trace(path) as trace:
        for table in (trace.blocks, trace.instructions, trace.branches):
            whole = table(extra_columns=[*INDEX, *SOURCE]).columns()
            part = table(
                rtit.Selection(functions=("main",)), extra_columns=[*INDEX, *SOURCE]
            ).columns()
            assert set(part["function"]) == {"main"}
            rows = np.isin(whole["index"], part["index"])
            for name, values in part.items():
                assert values.tolist() == whole[name][rows].tolist()


def built_with_inlined_functions() -> Path:
    sources = [str(SOURCES / "inlined.c")]
    header = (SOURCES / "inlined.h").read_bytes()
    flags = ["-g", "-O2", "-fno-pie", "-no-pie"]
    return compiled("inlined-columns", sources, language="c", flags=flags, depends=[header])


@pytest.fixture(scope="module")
def inlined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a program with functions that were inlined from a header, and its recording."""
    require_backend("qemu")
    program, folder = built_with_inlined_functions(), tmp_path_factory.mktemp("inlined")
    data = folder / "perf.data"
    words = ["record", "-q", "--backend", "qemu", "-o", str(data), "--", str(program)]
    assert subprocess.run([*RTIT, *words], check=False).returncode == 1, "that of the program"
    return program, data


def rows_of_program(trace: Trace, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of each table that are code of the program, with their IP as `at`."""
    [pid] = trace.mappings()
    ranges = tuple(
        (each.start, each.end) for each in trace.mappings()[pid] if each.path == str(path)
    )
    selection = rtit.Selection(ranges=ranges)
    for at, columns in (
        ("start", trace.blocks(selection, extra_columns=SOURCE).columns()),
        ("ip", trace.instructions(selection, extra_columns=SOURCE).columns()),
        ("source", trace.branches(selection, extra_columns=SOURCE).columns()),
    ):
        yield {"at": columns[at]} | {name: columns[name] for name in SOURCE}


def test_source_lines_equal_addr2line_and_functions_the_symbol_table(
    inlined: tuple[Path, Path],
) -> None:
    if shutil.which("addr2line") is None:
        pytest.skip("addr2line is not installed")
    path, data = inlined
    printed = subprocess.run(["nm", "-S", path], capture_output=True, text=True, check=True).stdout
    sizes = [words for line in printed.splitlines() if len(words := line.split()) == 4]
    functions = {
        address: name
        for start, size, kind, name in sizes
        if kind in "tT"
        for address in range(int(start, 16), int(start, 16) + int(size, 16))
    }
    with Trace(data) as trace:
        tables = [*rows_of_program(trace, path)]
    for rows in tables:
        addresses, first = np.unique(rows["at"], return_index=True)
        command = ["addr2line", "-e", str(path), *map(hex, addresses.tolist())]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for address, row, expected in zip(
            addresses.tolist(), first.tolist(), lines.splitlines(), strict=True
        ):
            file, _, line = expected.partition(" ")[0].rpartition(":")
            found = rows["file"][row], int(rows["line"][row])
            # Without DWARF addr2line prints the file of the symbol, or ??, and ? as the line.
            assert found == (("", 0) if line == "?" else (file, int(line)))
            if address in functions:
                assert rows["function"][row] == functions[address]
        assert {Path(each).name for each in rows["file"]} >= {"inlined.c", "inlined.h"}
        assert set(rows["function"]) >= {"repeat", "external", "main"}


def test_functions_of_a_stripped_program_have_the_same_bounds(
    inlined: tuple[Path, Path], tmp_path: Path
) -> None:
    if shutil.which("strip") is None:
        pytest.skip("strip is not installed")
    path, data = inlined
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, path], check=True)
    with Trace(data) as trace:
        tables = [*rows_of_program(trace, path)]
    with Trace(data, path_map={str(path): str(stripped)}) as trace:
        for known, rows in zip(tables, rows_of_program(trace, path), strict=True):
            own = np.isin(known["function"], ["repeat", "external", "rarely", "often", "main"])
            pairs = {*zip(known["function"][own], rows["function"][own], strict=True)}
            assert (
                len(pairs) == len({name for name, _ in pairs}) == len({name for _, name in pairs})
            )
            assert all(name.startswith(f"{path.name}+0x") for _, name in pairs)
            assert set(rows["file"]) == {""}
            assert set(rows["line"].tolist()) == {0}


def test_code_in_no_file_has_no_function_and_no_line() -> None:
    stream = make_stream(rtit.packets.encode("TNT", bits="T"), {0x1000: "7400"})
    columns = stream.branches(extra_columns=SOURCE).columns()
    assert {name: set(columns[name].tolist()) for name in SOURCE} == {
        "function": {""},
        "file": {""},
        "line": {0},
    }


@pytest.mark.parametrize("table", ["blocks", "instructions", "branches"])
def test_data_frame_libraries_read_names_as_categories(
    table: str, inlined: tuple[Path, Path]
) -> None:
    _, data = inlined
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    polars = pytest.importorskip("polars", reason="polars is not installed")
    pandas = pytest.importorskip("pandas", minversion="3", reason="pandas 3 is not installed")
    with Trace(data) as trace:
        rows = getattr(trace, table)(extra_columns=[*INDEX, *SOURCE])
        columns = rows.columns()
        batch = next(iter(rows))
        assert batch.function_names == columns["function"][: len(batch)].tolist()
        assert batch.file_names == columns["file"][: len(batch)].tolist()
        found = arrow.table(rows)
        for name in ("function", "file"):
            assert arrow.types.is_dictionary(found.schema.field(name).type)
            assert found[name].to_pylist() == columns[name].tolist()
        frame = polars.DataFrame(rows)
        assert frame["function"].dtype == polars.Categorical
        categories = pandas.DataFrame.from_arrow(rows)
        assert isinstance(categories["file"].dtype, pandas.CategoricalDtype)
        for name in ("function", "file", "line", "index"):
            assert frame[name].to_list() == categories[name].tolist() == columns[name].tolist()


def test_unknown_columns_are_usage_errors() -> None:
    stream = make_stream(b"", {0x1000: "7400"})
    with pytest.raises(UsageError, match="unknown column 'functions'; extra columns: index, fun"):
        stream.blocks(extra_columns=["functions"])
    with pytest.raises(UsageError, match="not a list of names: 'index'"):
        stream.branches(extra_columns="index")


@pytest.mark.parametrize("command", ["blocks", "branches", "instructions"])
def test_commands_print_the_columns_of_tables(
    command: str, inlined: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = inlined
    with Trace(data) as trace:
        table = getattr(trace, command)(
            rtit.Selection(functions=("repeat",), head=50), extra_columns=[*INDEX, *SOURCE]
        )
        columns = table.columns()
    words = [command, str(data), "--function", "repeat", "--head", "50"]
    assert main([*words, "--fields", "index,function,line,file"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = zip(
        *(columns[name].tolist() for name in ("index", "function", "line", "file")), strict=True
    )
    assert [words[-4:] for words in printed] == [[*map(str, row)] for row in rows]


@pytest.mark.parametrize("command", ["blocks", "branches"])
def test_json_has_the_requested_columns(
    command: str, inlined: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = inlined
    words = [command, str(data), "--function", "repeat", "--head", "5", "--json"]
    assert main([*words, "--fields", "function,line"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["function"] for row in rows} == {"repeat"}
    assert all(row["line"] > 0 and "file" not in row and "index" not in row for row in rows)


STATE = ["cpl", "cr3"]
KERNEL_CODE = 0xFFFF_FFFF_8100_0000


def stream_of_page_tables(rounds: int) -> Any:
    """Return a stream in which a PIP changes CR3 twice in each round, at MOV CR3 instructions."""

    def tip(address: int) -> bytes:
        return encode("TIP", ip_bytes=6, payload=address)

    # 1000 nop; 1001 mov cr3, rax; 1004 nop; 1005 jmp rax, and in the kernel the same
    code = "90 0f22d8 90 ffe0"
    each = (
        encode("PIP", cr3=0x5000, nr=0)
        + tip(KERNEL_CODE)
        + encode("PIP", cr3=0x7000, nr=0)
        + tip(0x1000)
    )
    end = encode("FUP", ip_bytes=6, payload=0x1000) + encode("TIP.PGD", ip_bytes=0)
    return make_stream(each * rounds + end, {0x1000: code, KERNEL_CODE: code})


def test_rows_have_cr3_of_the_last_pip() -> None:
    stream = stream_of_page_tables(2)
    rows = stream.instructions(extra_columns=STATE).columns()
    offsets = (0, 1, 4, 5)
    # MOV CR3 itself still runs with the old value, which is unknown at first.
    user = [(0x1000 + offset, 3) for offset in offsets]
    kernel = [(KERNEL_CODE + offset, 0) for offset in offsets]
    values = [0, 0, 0x5000, 0x5000, 0x5000, 0x5000, 0x7000, 0x7000]
    values += [0x7000, 0x7000, 0x5000, 0x5000, 0x5000, 0x5000, 0x7000, 0x7000]
    expected = [(*row, cr3) for row, cr3 in zip((user + kernel) * 2, values, strict=True)]
    found = zip(*(rows[name].tolist() for name in ("ip", *STATE)), strict=True)
    assert [*found] == expected


def test_block_ends_where_cr3_changes() -> None:
    blocks = stream_of_page_tables(1).blocks(extra_columns=STATE).columns()
    found = zip(*(blocks[name].tolist() for name in ("start", "instructions", *STATE)), strict=True)
    assert [*found] == [
        (0x1000, 2, 3, 0),
        (0x1004, 2, 3, 0x5000),
        (KERNEL_CODE, 2, 0, 0x5000),
        (KERNEL_CODE + 4, 2, 0, 0x7000),
    ]


def test_batches_continue_with_the_last_cr3() -> None:
    values = np.concatenate(
        [batch.cr3 for batch in stream_of_page_tables(50_000).instructions(extra_columns=STATE)]
    )
    expected = np.tile(np.array([0x7000, 0x7000, *[0x5000] * 4, 0x7000, 0x7000]), 50_000)
    assert (values[2:] == expected[2:]).all()


def test_first_thread_of_linux_runs_at_cpl_0_only() -> None:
    """Code that starts a processor runs below the addresses of the kernel."""
    stream = replace(stream_of_page_tables(1), tid=0, pid=0)
    assert not np.concatenate([each.cpl for each in stream.blocks(extra_columns=["cpl"])]).any()


def test_branches_have_no_cr3() -> None:
    with pytest.raises(UsageError, match="branches have no column cr3: use blocks or instructions"):
        stream_of_page_tables(1).branches(extra_columns=["cr3"])


@pytest.mark.parametrize("timing", [False, True])
def test_batches_have_the_columns_that_the_table_declares(*, timing: bool) -> None:
    """Readers of Arrow data rely on it."""
    table = stream_of_page_tables(1).blocks(timing=timing, extra_columns=[*INDEX, *STATE])
    [batch] = table
    assert [*batch.extra_columns] == [*table.extra_columns]
