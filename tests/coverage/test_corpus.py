"""Coverage of a corpus of short traces: the edges are those that the traces were made of."""

from __future__ import annotations

import csv
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

import rtit
from rtit.coverage import CorpusCoverage, corpus, corpus_coverage
from rtit.packets import encode
from support.duckdb_files import ParquetQuery
from support.streams import SYNC

BRANCHES = 12
Edges = set[tuple[int, int]]


def image() -> rtit.Image:
    """Return a chain of branches: at 0x1000 + 3 * i, je over a nop to the next."""
    return rtit.Image().add(0x1000, bytes.fromhex("740190") * (BRANCHES + 1))


def make_trace(outcomes: str) -> bytes:
    tnt = [encode("TNT", bits=outcomes[at : at + 6]) for at in range(0, len(outcomes), 6)]
    return SYNC + b"".join(tnt)


def edges_of(outcomes: str) -> Edges:
    return {
        (0x1000 + 3 * at, 0x1000 + 3 * at + (3 if outcome == "T" else 2))
        for at, outcome in enumerate(outcomes)
    }


@pytest.fixture
def outcomes() -> list[str]:
    """Return the outcomes of the branches of 300 traces, of several lengths; some are equal."""
    choose = random.Random(1)
    return [
        "".join(choose.choice("TTTN") for _ in range(choose.randrange(BRANCHES + 1)))
        for _ in range(300)
    ]


def edges_in(found: CorpusCoverage, trace: int) -> Edges:
    rows = found.edges_of(trace)
    pairs = zip(found.edges.source[rows].tolist(), found.edges.target[rows].tolist(), strict=True)
    return set(pairs)


def test_each_trace_has_its_edges_and_the_corpus_those_of_all(outcomes: list[str]) -> None:
    found = corpus_coverage([make_trace(each) for each in outcomes], image(), jobs=1)
    expected = [edges_of(each) for each in outcomes]
    assert [edges_in(found, trace) for trace in range(len(outcomes))] == expected
    assert found.traces.edges.tolist() == [len(each) for each in expected]
    assert found.traces.size.tolist() == [len(make_trace(each)) for each in outcomes]
    counts = Counter(edge for each in expected for edge in each)
    assert [tuple(row[:2]) for row in zip(*found.edges.column_lists(), strict=True)] == sorted(
        counts
    )
    assert found.edges.traces.tolist() == [counts[each] for each in sorted(counts)]


def test_covering_set_is_the_greedy_choice_and_has_all_edges(outcomes: list[str]) -> None:
    found = corpus_coverage([make_trace(each) for each in outcomes], image(), jobs=1)
    covered: Edges = set()
    for trace in found.covering_set:
        gains = [len(edges_of(each) - covered) for each in outcomes]
        assert trace == gains.index(max(gains))
        assert found.traces.added[trace] == max(gains)
        covered |= edges_of(outcomes[trace])
    assert covered == {edge for each in outcomes for edge in edges_of(each)}


def test_result_is_the_same_for_any_number_of_processes(
    outcomes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_TRACES_AT_ONCE", 40)
    traces = [make_trace(each) for each in outcomes]
    alone, together = (corpus_coverage(traces, image(), jobs=jobs) for jobs in (1, 3))
    for table in ("traces", "edges"):
        first, second = (getattr(each, table).columns() for each in (alone, together))
        for name in first:
            assert first[name].tolist() == second[name].tolist()
    assert all(edges_in(together, trace) == edges_of(each) for trace, each in enumerate(outcomes))


def test_traces_of_a_killed_process_are_decoded_again(
    outcomes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = corpus._decode_slice
    death = tmp_path / "death"

    def decode_or_die(*arguments: object) -> object:
        if not death.exists():
            death.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return decode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(corpus, "_TRACES_AT_ONCE", 100)
    monkeypatch.setattr(corpus, "_decode_slice", decode_or_die)
    found = corpus_coverage([make_trace(each) for each in outcomes], image(), jobs=2)
    assert all(edges_in(found, trace) == edges_of(each) for trace, each in enumerate(outcomes))


def test_traces_that_kill_every_process_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_TRACES_AT_ONCE", 100)
    monkeypatch.setattr(corpus, "_decode_slice", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(rtit.WorkerDiedError, match=r"^traces 0 \(bytes\) to 99: .* signal 9$"):
        corpus_coverage([make_trace("TN")] * 150, image(), jobs=2)


def test_files_are_written_as_csv_with_their_names(outcomes: list[str], tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.pt" for number in range(20)]
    for path, each in zip(paths, outcomes, strict=False):
        path.write_bytes(make_trace(each))
    paths[3].write_bytes(b"")
    paths[4].write_bytes(make_trace("TN") + encode("OVF"))
    found = corpus_coverage(paths, image())
    found.write_csv(tmp_path / "traces.csv")
    with (tmp_path / "traces.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [str(each) for each in paths]
    assert (rows[3]["size"], rows[3]["edges"]) == ("0", "0")
    assert int(rows[4]["errors"]) > 0
    assert int(rows[4]["edges"]) == 2
    assert int(rows[5]["edges"]) == len(edges_of(outcomes[5]))


def test_traces_are_read_by_arrow_tools(outcomes: list[str]) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    found = corpus_coverage([make_trace(each) for each in outcomes], image(), jobs=1)
    frame = polars.DataFrame(found.traces)
    assert frame["edges"].to_list() == [len(edges_of(each)) for each in outcomes]
    assert polars.DataFrame(found.edges)["source"].to_list() == found.edges.source.tolist()


def test_parquet_files_have_the_coverage_and_the_covering_set(
    outcomes: list[str], tmp_path: Path, query_parquet: ParquetQuery
) -> None:
    paths = [tmp_path / f"{number:03}.pt" for number in range(len(outcomes))]
    for path, each in zip(paths, outcomes, strict=True):
        path.write_bytes(make_trace(each))
    corpus_coverage(paths, image()).write_parquet(tmp_path / "tables")

    def rows_of(query: str, file: str) -> list[tuple[object, ...]]:
        return query_parquet(query, [str(tmp_path / "tables" / file)])

    found = rows_of("select name, edges from read_parquet($1)", "traces.parquet")
    assert found == [(str(path), len(each)) for path, each in zip(paths, outcomes, strict=True)]
    found = rows_of("select source, target from read_parquet($1)", "edges.parquet")
    assert found == sorted({edge for each in outcomes for edge in edges_of(each)})
    query = "select name from read_parquet($1) where rank > 0 order by rank"
    chosen = [str(name) for (name,) in rows_of(query, "traces.parquet")]
    covered = {edge for name in chosen for edge in edges_of(outcomes[int(Path(name).stem)])}
    assert covered == {edge for each in outcomes for edge in edges_of(each)}


def test_empty_corpus_has_no_rows() -> None:
    found = corpus_coverage([], image())
    assert (len(found.traces), len(found.edges), found.covering_set) == (0, 0, [])
