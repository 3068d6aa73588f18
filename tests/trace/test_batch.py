"""Batches as NumPy columns, as Arrow tables, and as rows."""

from __future__ import annotations

import ctypes
import os
import pickle

import numpy as np
import pytest

import rtit
from rtit.packets import encode
from rtit.trace import BlockIds, BranchKind, Calls, Stream
from rtit.trace.tables.rows import Branch, Instruction, SyncPoint
from support.streams import SYNC

CALL = encode("TIP", ip_bytes=6, payload=0x2000)
BACK = encode("TIP", ip_bytes=6, payload=0x1000)
PSB = SYNC.replace(encode("TSC", tsc=1 << 20), encode("TSC", tsc=2 << 20))


def stream(times: int = 1) -> Stream:
    """1000 call rax; 2000 jz 2004; 2002 nop; 2003 nop; 2004 jmp rax; jz is taken, then not."""
    image = rtit.Image().add(0x1000, b"\xff\xd0").add(0x2000, bytes.fromhex("7402 90 90 ffe0"))
    loop = b"".join(CALL + encode("TNT", bits=bits) + BACK for bits in "TN" * times)
    return rtit.decode(SYNC + loop + PSB, image).streams[0]


def test_instructions_are_columns_and_rows() -> None:
    (batch,) = stream().instructions()
    assert batch.ip.tolist() == [0x1000, 0x2000, 0x2004, 0x1000, 0x2000, 0x2002, 0x2003, 0x2004]
    assert batch.size.tolist() == [2, 2, 2, 2, 2, 1, 1, 2]
    assert set(batch.time.tolist()) == {1 << 20}
    assert next(iter(batch)) == Instruction(0x1000, 2, 1 << 20, 64, 0)
    assert len(batch) == len(list(batch)) == 8
    assert repr(batch) == "<Instructions: 8>"


def test_edges_equal_counted_branches() -> None:
    (batch,) = stream().branches()
    time = 1 << 20
    assert list(batch) == [
        Branch(0x1000, 0x2000, BranchKind.INDIRECT_CALL, time),
        Branch(0x2000, 0x2004, BranchKind.CONDITIONAL, time),
        Branch(0x2004, 0x1000, BranchKind.INDIRECT_JUMP, time),
        Branch(0x1000, 0x2000, BranchKind.INDIRECT_CALL, time),
        Branch(0x2000, 0x2002, BranchKind.NOT_TAKEN, time),
        Branch(0x2004, 0x1000, BranchKind.INDIRECT_JUMP, time),
    ]
    many = stream(20_000)
    found = many.branches().columns()
    rows = np.stack([found["source"], found["target"], found["kind"]], axis=1)
    kinds, counts = np.unique(rows, axis=0, return_counts=True)
    edges = many.edges()
    expected = np.stack([edges.source, edges.target, edges.kind], axis=1)
    assert np.array_equal(kinds, expected)
    assert np.array_equal(counts, edges.count)


@pytest.mark.parametrize("table", ["blocks", "branches", "instructions", "raw_events", "packets"])
def test_batch_survives_pickle_and_is_immutable(table: str) -> None:
    batch = next(iter(getattr(stream(), table)()))
    there = pickle.loads(pickle.dumps(batch))
    assert list(there) == list(batch)
    for name, column in batch.columns().items():
        assert np.array_equal(getattr(there, name), column)
        assert there.buffer(name).tolist() == column.tolist()
    with pytest.raises(AttributeError, match="is immutable"):
        batch.extra_columns = {}
    with pytest.raises(AttributeError, match="no column 'nothing'"):
        _ = there.nothing
    with pytest.raises(TypeError, match="has 1 columns"):
        BlockIds()


def test_sync_points_have_offset_and_time() -> None:
    (batch,) = stream().sync_points()
    assert list(batch) == [
        SyncPoint(0, 0x1000, 1 << 20),
        SyncPoint(len(SYNC + CALL + BACK) * 2 - len(SYNC) + 2, 0x1000, 2 << 20),
    ]


def test_blocks_and_coverage_have_ranges() -> None:
    one = stream()
    blocks = one.blocks().columns()
    assert blocks["start"].tolist() == [0x1000, 0x2000, 0x2004, 0x1000, 0x2000]
    assert blocks["instructions"].tolist() == [1, 1, 1, 1, 4]
    covered = one.coverage()
    assert dict(zip(covered.start.tolist(), covered.count.tolist(), strict=True))[0x1000] == 2


def test_columns_concatenate_many_and_no_batches() -> None:
    many = stream(20_000)
    assert sum(1 for _ in many.instructions()) > 1
    columns = many.instructions().columns()
    assert len(columns["ip"]) == len(columns["time"]) == 8 * 20_000
    none = rtit.decode(b"").streams[0].instructions().columns()
    assert {name: (len(each), each.dtype) for name, each in none.items()} == {
        "ip": (0, np.dtype("u8")),
        "size": (0, np.dtype("u1")),
        "time": (0, np.dtype("u8")),
        "bits": (0, np.dtype("u1")),
        "in_tx": (0, np.dtype("u1")),
    }


def test_table_repr_names_columns() -> None:
    assert repr(stream().branches()) == "<Table of Branches: source, target, kind, time>"


class Schema(ctypes.Structure):
    """ArrowSchema, by its specification."""


Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(Schema))),
    ("dictionary", ctypes.POINTER(Schema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class Array(ctypes.Structure):
    """ArrowArray, by its specification."""


Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(Array))),
    ("dictionary", ctypes.POINTER(Array)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


def pointer(capsule: object, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found: int = get(capsule, name)
    return found


def test_arrow_structs_follow_specification() -> None:
    """Read by the C data interface, without a library for Arrow."""
    (batch,) = stream().branches()
    schema_capsule, array_capsule = batch.__arrow_c_array__()
    schema = Schema.from_address(pointer(schema_capsule, b"arrow_schema"))
    array = Array.from_address(pointer(array_capsule, b"arrow_array"))
    assert (schema.format, schema.n_children, array.n_children, array.length) == (b"+s", 4, 4, 6)
    fields = [schema.children[at].contents for at in range(4)]
    assert [(each.name, each.format) for each in fields] == [
        (b"source", b"L"),
        (b"target", b"L"),
        (b"kind", b"C"),
        (b"time", b"L"),
    ]
    source, kind = array.children[0].contents, array.children[2].contents
    assert (source.length, source.null_count, source.n_buffers) == (6, 0, 2)
    # at NumPy's address: nothing was copied
    assert source.buffers[1] == batch.source.ctypes.data
    assert fields[2].dictionary.contents.format == b"u"
    words = kind.dictionary.contents
    ends = (ctypes.c_int32 * (words.length + 1)).from_address(words.buffers[1])
    text = ctypes.string_at(words.buffers[2], ends[words.length]).decode()
    labels = [text[ends[at] : ends[at + 1]] for at in range(words.length)]
    assert [labels[number] for number in batch.kind.tolist()][:2] == [
        "indirect call",
        "conditional",
    ]
    assert labels == [each.label for each in BranchKind]


def test_arrow_libraries_read_batches() -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    many = stream(20_000)
    table = arrow.table(many.branches())
    assert table.column_names == ["source", "target", "kind", "time"]
    assert table.num_rows == 6 * 20_000
    assert table["kind"].slice(0, 2).to_pylist() == ["indirect call", "conditional"]
    assert arrow.record_batch(many.edges()).num_rows == 4

    failing = rtit.decode([SYNC, 5], rtit.Image()).streams[0]  # type: ignore[list-item]
    with pytest.raises(OSError, match="piece 1 of the stream"):
        arrow.table(failing.branches())


def test_arrow_has_extra_columns_and_texts() -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    trace = rtit.decode(SYNC + CALL + b"\x05" + SYNC, rtit.Image().add(0x1000, b"\xff\xd0"))
    table = arrow.table(trace.blocks(timing=True))
    assert [str(kind) for kind in table.schema.types[-7:]] == [
        *["uint64"] * 3,
        *["double"] * 2,
        *["int32"] * 2,
    ]
    ledger = arrow.record_batch(trace.ledger()).to_pylist()
    assert [row["kind"] for row in ledger] == ["exact", "lost", "exact"]
    assert ledger[1]["error"].startswith("undefined packet opcode 05")
    assert arrow.table(trace.packets()).num_rows == 13


def test_pandas_and_polars_read_batches() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame(stream(20_000).branches(timing=True))
    assert frame.shape == (6 * 20_000, 8)
    assert frame["kind"].to_list()[:2] == ["indirect call", "conditional"]


def test_data_frame_libraries_read_batches() -> None:
    pandas = pytest.importorskip("pandas", minversion="3", reason="pandas 3 is not installed")
    pytest.importorskip("pyarrow", reason="pandas takes Arrow's interface by pyarrow")
    frame = pandas.DataFrame.from_arrow(stream(20_000).branches(timing=True))
    assert frame.shape == (6 * 20_000, 8)
    assert frame["kind"].tolist()[:2] == ["indirect call", "conditional"]


def test_duckdb_queries_batches() -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    branches = stream(20_000).branches()
    query = "select kind, count(*) from branches group by kind order by kind"
    found = duckdb.sql(query, connection=duckdb.connect()).fetchall()
    assert branches is not None
    assert found == [
        ("conditional", 20_000),
        ("indirect call", 40_000),
        ("indirect jump", 40_000),
        ("not taken", 20_000),
    ]


def test_names_that_are_not_utf_8_are_texts_of_arrow() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    calls = Calls(*(np.zeros(1, dtype) for _, dtype, _ in Calls.FIELDS))
    module = os.fsdecode("/bin/é".encode() + b"\xff")
    frame = polars.DataFrame(calls.replace(functions=("f",), modules=(module,)))
    assert frame["module"].to_list() == ["/bin/é\\xff"]
