"""Coverage of a corpus: many short traces of raw PT of one program, as fuzzers have them."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heapreplace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rtit.errors import UsageError, WorkerDiedError
from rtit.trace import Batch, Decoder
from rtit.trace.tables.batch import declare_column
from rtit.worker_processes import default_processes, run_in_order

if TYPE_CHECKING:
    from distributed import Client
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from rtit.image import Image
    from rtit.trace import Start

    RawPt = str | os.PathLike[str] | Buffer
    U32 = NDArray[np.uint32]
    U64 = NDArray[np.uint64]

_TRACES_AT_ONCE = 2000
"""Traces that one process decodes, so that its code cache pays."""


class CorpusTraces(Batch):
    """The traces of a corpus, a row for each, in the order in which they were given.

    * `size` in bytes of PT; `lost`: bytes that were not decoded; `errors`: errors in the trace
    * `instructions` that ran; `edges`: distinct edges that ran
    * `rank`: place in the covering set, from 1 on; 0 for a trace that is not in the set
    * `added`: edges of the trace that no trace of a lower rank has; 0 outside of the set
    """

    size: U64 = declare_column("u8")
    lost: U64 = declare_column("u8")
    errors: U64 = declare_column("u8")
    instructions: U64 = declare_column("u8")
    edges: U32 = declare_column("u4")
    rank: U32 = declare_column("u4")
    added: U32 = declare_column("u4")


class CorpusEdges(Batch):
    """The distinct edges of a corpus: `source` (IP of the branch), `target`, and `traces`, the
    number of traces in which the edge ran. Sorted by `source` and `target`.
    """

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = ("source", "source")
    source: U64 = declare_column("u8")
    target: U64 = declare_column("u8")
    traces: U32 = declare_column("u4")


@dataclass(frozen=True, eq=False)
class CorpusCoverage:
    """Coverage of each trace of a corpus, and of all."""

    traces: CorpusTraces
    edges: CorpusEdges
    names: list[str]
    """The paths of the traces; "" for a trace that was given as bytes."""
    _sets: list[U32]
    """Distinct sets of edges, as rows of `edges`."""
    _set_of_trace: U32

    def edges_of(self, trace: int) -> U32:
        """Return the edges of a trace, as rows of `edges`."""
        return self._sets[int(self._set_of_trace[trace])]

    @property
    def covering_set(self) -> list[int]:
        """Traces that together have all edges of the corpus, as rows of `traces`.

        Each is the one that adds the most edges to those before it (the greedy choice); of several,
        the first.
        """
        rank = self.traces.rank
        chosen = np.flatnonzero(rank)
        return [int(each) for each in chosen[np.argsort(rank[chosen])]]

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write `traces` as CSV, with a column `name`. Raises OSError."""
        columns = self.traces.columns()
        with Path(path).open("w", newline="", errors="surrogateescape") as file:
            writer = csv.writer(file)
            writer.writerow(["name", *columns])
            rows = zip(*(column.tolist() for column in columns.values()), strict=True)
            writer.writerows([name, *row] for name, row in zip(self.names, rows, strict=True))

    def write_parquet(self, folder: str | os.PathLike[str]) -> None:
        """Write `traces`, with a column `name`, and `edges` to `traces.parquet` and
        `edges.parquet` in a folder.

        Raises OSError, and UnsupportedError without DuckDB.
        """
        from rtit.query import write_parquet_table

        path = Path(folder)
        path.mkdir(exist_ok=True)
        write_parquet_table(str(path / "traces.parquet"), {"name": self.names}, self.traces)
        write_parquet_table(str(path / "edges.parquet"), {}, self.edges)


def corpus_coverage(
    traces: Sequence[RawPt],
    image: Image | Callable[[], Image],
    *,
    jobs: int = 0,
    client: Client | None = None,
    start: Start | None = None,
    **options: Any,
) -> CorpusCoverage:
    """Return the coverage of each of many short traces of the same code, and of all.

    Each trace is a path of raw PT, or the packets. `image` is the code, or a function that returns
    it. `start` is the state at the first byte of each trace; without it, decoding starts at the
    first PSB. `options` are those of `rtit.Decoder`. `jobs`: processes; 0: one for each CPU, at
    most 8. `client`: the workers of this Dask cluster decode; `image` must be a function, and the
    workers read the paths. The result does not depend on who decodes. Memory: the distinct sets of
    edges, 4 bytes for each edge of a set. Errors in a trace raise nothing. Raises OSError for a
    path that cannot be read, WorkerDiedError, and UsageError.
    """
    if not 0 <= jobs <= 255:
        raise UsageError(f"jobs is {jobs}: it must be 0 to 255")
    if client is not None and not callable(image):
        raise UsageError("with a client, image must be a function that returns the code")
    Decoder(image() if callable(image) else image, **options)  # wrong options are errors here
    names = ["" if _is_packets(each) else os.fspath(each) for each in traces]  # type: ignore[arg-type]
    if client is not None:  # the workers have other working directories
        traces = [each if _is_packets(each) else Path(each).absolute() for each in traces]  # type: ignore[arg-type]
    slices = [traces[at : at + _TRACES_AT_ONCE] for at in range(0, len(traces), _TRACES_AT_ONCE)]
    work = partial(_decode_slice, image, start, options)
    processes = min(jobs or default_processes(), len(slices))
    return _join_slices(run_in_order(work, slices, processes, client), names)


@dataclass(slots=True)
class _CorpusSlice:
    """Coverage of some traces; the sets have numbers of `edges`."""

    edges: list[tuple[int, int]]
    sets: list[U32]
    set_of_trace: list[int]
    rows: list[tuple[int, int, int, int]]


def _is_packets(trace: RawPt) -> bool:
    return not isinstance(trace, str | os.PathLike)


def _decode_slice(
    image: Image | Callable[[], Image],
    start: Start | None,
    options: dict[str, Any],
    traces: Sequence[Any],
) -> _CorpusSlice:
    decoder = Decoder(image() if callable(image) else image, **options)
    edge_numbers: dict[tuple[int, int], int] = {}
    known_sets: dict[bytes, int] = {}
    found = _CorpusSlice([], [], [], [])
    for trace in traces:
        data = trace if _is_packets(trace) else Path(trace).read_bytes()
        result = decoder.run(data, start=start)
        found.rows.append((result.size, result.lost, result.errors, result.instructions))
        edges = decoder.edges()
        content = edges.source.tobytes() + edges.target.tobytes()
        at = known_sets.setdefault(content, len(known_sets))
        if at == len(found.sets):
            pairs = zip(edges.source.tolist(), edges.target.tolist(), strict=True)
            rows = [edge_numbers.setdefault(pair, len(edge_numbers)) for pair in pairs]
            found.sets.append(np.unique(np.array(rows, np.uint32)))
        found.set_of_trace.append(at)
    found.edges = [*edge_numbers]
    return found


def _join_slices(
    slices: Iterator[_CorpusSlice | WorkerDiedError], names: list[str]
) -> CorpusCoverage:
    edge_numbers: dict[tuple[int, int], int] = {}
    set_numbers: dict[bytes, int] = {}
    set_of_trace: list[U32] = []
    rows: list[NDArray[Any]] = []
    for part in slices:
        if isinstance(part, WorkerDiedError):
            raise WorkerDiedError(f"{_describe_slice(names, sum(map(len, rows)))}: {part}")
        joined = [edge_numbers.setdefault(each, len(edge_numbers)) for each in part.edges]
        renumber = np.array(joined, np.uint32)
        numbers = [
            set_numbers.setdefault(np.sort(renumber[each]).tobytes(), len(set_numbers))
            for each in part.sets
        ]
        set_of_trace.append(np.array(numbers, np.uint32)[part.set_of_trace])
        rows.append(np.array(part.rows, np.uint64))
    columns = np.ascontiguousarray(np.concatenate(rows).T if rows else np.zeros((4, 0), np.uint64))
    of_trace = np.concatenate(set_of_trace) if rows else np.zeros(0, np.uint32)
    edges = np.array([*edge_numbers], np.uint64).reshape(-1, 2)
    order = np.lexsort((edges[:, 1], edges[:, 0]))
    place = np.empty(len(order), np.uint32)
    place[order] = np.arange(len(order), dtype=np.uint32)
    sets = [np.sort(place[np.frombuffer(each, np.uint32)]) for each in set_numbers]
    traces_of_edge = np.zeros(len(order), np.uint32)
    for each, count in zip(sets, np.bincount(of_trace, minlength=len(sets)), strict=True):
        traces_of_edge[each] += np.uint32(count)
    rank, added = _choose_covering_set(sets, of_trace, len(order))
    sizes = np.array([len(each) for each in sets], np.uint32)
    return CorpusCoverage(
        CorpusTraces(*columns, sizes[of_trace] if len(sizes) else of_trace, rank, added),
        CorpusEdges(edges[order, 0], edges[order, 1], traces_of_edge),
        names,
        sets,
        of_trace,
    )


def _describe_slice(names: list[str], first: int) -> str:
    last = min(first + _TRACES_AT_ONCE, len(names)) - 1
    return f"traces {first:,} ({names[first] or 'bytes'}) to {last:,}"


def _choose_covering_set(sets: list[U32], set_of_trace: U32, edges: int) -> tuple[U32, U32]:
    """Return rank and added edges of each trace; see `CorpusCoverage.covering_set`."""
    rank, added = (np.zeros(len(set_of_trace), np.uint32) for _ in range(2))
    # sets are numbered in the order of their first traces
    _, first_trace = np.unique(set_of_trace, return_index=True)
    covered = np.zeros(edges, bool)
    # A set adds no more edges later than now, so an earlier number is an upper limit.
    best = [(-len(each), number) for number, each in enumerate(sets)]
    heapify(best)
    chosen = 0
    while best:
        limit, number = best[0]
        gain = int(np.count_nonzero(~covered[sets[number]]))
        if gain and gain == -limit:
            heappop(best)
            covered[sets[number]] = True
            chosen += 1
            rank[first_trace[number]], added[first_trace[number]] = chosen, gain
        elif gain:
            heapreplace(best, (-gain, number))
        else:
            heappop(best)
    return rank, added
