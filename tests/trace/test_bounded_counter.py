"""Bounded counters of runs and edges."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from rtit.errors import UsageError
from rtit.packets import encode
from rtit.profile.builder import build_profile
from rtit.profile.stat import stat
from rtit.trace import Selection, Totals, Trace
from rtit.trace.tables.counts import BoundedCounter, default_max_counters
from support.oversized import CODE_SIZE, START, write_oversized
from support.streams import SYNC

ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(1, 5)))
Counts = tuple[list[tuple[tuple[int, ...], int]], int]


@given(
    st.lists(st.tuples(ROWS, st.booleans(), st.booleans())),
    st.integers(1, 50),
    st.integers(0, 300),
)
def test_counter_keeps_first_keys_and_totals_rest(
    batches: list[tuple[list[tuple[int, int, int]], bool, bool]], most: int, waiting: int
) -> None:
    sums, counted = (
        BoundedCounter("u8 u1", most, kind_column=1, max_pending_rows=waiting),
        Counter[tuple[int, int]](),
    )
    for rows, weighted, looked in batches:
        source, kind, count = (
            np.array([row[at] for row in rows], dtype)
            for at, dtype in enumerate(("u8", "u1", "u8"))
        )
        sums.add_rows(source, kind, count=count if weighted else None)
        for row in rows:
            counted[row[:2]] += row[2] if weighted else 1
        if looked:
            # what was added up may be added again, the others stay what they were
            *keys, known = sums.take_sorted_columns()
            sums.add_rows(*keys, count=known)
    columns = sums.take_sorted_columns()
    assert [column.dtype.str[1:] for column in columns] == ["u8", "u1", "u8"]
    whole = sorted(counted.items())
    assert list(zip(*(each.tolist() for each in columns), strict=True)) == [
        (*key, count) for key, count in whole[:most]
    ]
    others = Counter[int]()
    for (_, each), came in whole[most:]:
        others[each] += came
    assert sums.uncounted == others.total()
    assert +sums.uncounted_by_kind == +others
    assert len(sums.take_sorted_columns()[0]) == 0


def test_default_max_counters_depends_on_size() -> None:
    assert default_max_counters(1) == 1 << 19
    assert default_max_counters(10 << 20) == (1 << 19) + (10 << 10)
    assert default_max_counters(1 << 40) == default_max_counters(0) == 1 << 22
    known, live = rtit.decode([b"\0" * 4096]), rtit.decode(iter([b"\0" * 4096]))
    assert known.max_counters == known.streams[0].max_counters == (1 << 19) + 4
    assert live.max_counters == live.streams[0].max_counters == 1 << 22
    with pytest.raises(UsageError, match="max_counters is -1"):
        rtit.decode(b"", max_counters=-1)


def _runs(totals: Totals) -> Counts:
    runs = totals.runs
    keys = zip(runs.start.tolist(), runs.instructions.tolist(), strict=True)
    return list(zip(keys, runs.count.tolist(), strict=True)), runs.uncounted


def _edges(totals: Totals) -> Counts:
    edges = totals.edges
    keys = zip(edges.source.tolist(), edges.target.tolist(), edges.kind.tolist(), strict=True)
    return list(zip(keys, edges.count.tolist(), strict=True)), edges.uncounted


def _first(whole: Counts, most: int) -> Counts:
    rows, others = whole
    assert not others
    return rows[:most], sum(count for _, count in rows[most:])


BACK = b"".join(
    encode("TIP", ip_bytes=6, payload=START + 2 * (n * 7919 % 3001)) for n in range(9000)
)
"""Each jump three times, in mixed order."""
SEVERAL = (SYNC + BACK) * 12
"""Several segments for each of several threads."""
DAMAGED = SEVERAL[:300_000] + b"\x02\x05" + SEVERAL[300_000:] + b"\x02"


@pytest.mark.parametrize("data", [SEVERAL, DAMAGED], ids=["sound", "damaged"])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("max_counters", [1, 100, 2999])
def test_kept_counters_have_full_counts(data: bytes, threads: int, max_counters: int) -> None:
    image = rtit.Image().add(START, b"\xff\xe0" * (CODE_SIZE >> 6))
    whole = rtit.decode(data, image, jobs=1).streams[0].totals()
    made = rtit.decode(data, image, jobs=threads, max_counters=max_counters)
    assert made.max_counters == max_counters
    (stream,) = made.streams
    found = stream.totals()
    assert _runs(found) == _first(_runs(whole), max_counters)
    assert _edges(found) == _first(_edges(whole), max_counters)
    assert found.runs.uncounted > 0 < found.edges.uncounted
    # in the order of rows
    edges = stream.edges(Selection(head=1 << 40))
    assert _edges(Totals(found.runs, edges)) == _edges(found)


def test_limit_applies_to_each_stream_and_its_profile(tmp_path: Path) -> None:
    path = write_oversized(tmp_path, "targets", 40_000)
    with Trace(path) as trace, Trace(path, max_counters=500) as less:
        whole, found = (
            build_profile(trace, trace.streams * 2),
            build_profile(less, less.streams * 2),
        )
        taken = sum(whole.transfers.values())
        assert found.transfers == whole.transfers
        assert found.losses.uncounted_transfers == taken - 2 * 500 > 0
        # each run is one instruction, and the first of all ran once more at the PSB
        assert found.losses.no_file == 2 * 500 + 2
        assert found.losses.uncounted_runs == found.instructions - found.losses.no_file > 0
        assert found.instructions == whole.instructions == whole.losses.no_file
        counted = stat(less, less.streams)
        assert any("beyond --max-edges" in line for line in counted.describe_uncounted_code)
