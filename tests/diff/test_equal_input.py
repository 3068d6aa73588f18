"""Shortcuts for equal packets and equal rows: the difference is that of comparing all steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from programs.build import SOURCES, CannotBuildError, compiled
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.diff import compare_paths
from rtit.diff.diff_traces import diff_traces
from rtit.diff.difference import Difference
from rtit.trace import MemorySource, Stream
from rtit.trace.tables import build_tables
from support.properties import examples
from support.recordings import record_to_end

Traces = list[rtit.Trace]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    """Two equal recordings, one with other packets, and one with another path."""
    try:
        source = str(SOURCES / "sorting.c")
        exe = compiled("sorting", [source], language="c", flags=["-O1"], libraries=["-lm"])
    except CannotBuildError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("sorting")
    found = []
    for number, (count, event) in enumerate(
        [
            ("60", "intel_pt//u"),
            ("60", "intel_pt//u"),
            ("60", "intel_pt/cyc=1,psb_period=0/u"),
            ("61", "intel_pt//u"),
        ]
    ):
        output = folder / str(number)
        request = RecordRequest([str(exe), count], env={}, event=event, output=output)
        record_to_end(start_recording(request))
        found.append(rtit.Trace(output))
    yield found
    for each in found:
        each.close()


def changed(stream: Stream, changes: list[tuple[int, int, str]]) -> Stream:
    """Return a stream with missing, doubled, wrong or cut packets."""
    packets = stream.read()
    for at, size, kind in changes:
        start = len(packets) * at // 1000
        part, rest = packets[start : start + size], packets[start + size :]
        if kind == "cut":
            part = rest = b""
        packets = packets[:start] + {"missing": b"", "doubled": 2 * part}.get(kind, part) + rest
        if kind == "wrong":
            packets = packets[:start] + b"\x02\xff" + packets[start + 2 :]
    return stream.copy_with(source=MemorySource(packets))


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.integers(1, 500),
        st.sampled_from(["missing", "doubled", "wrong", "cut"]),
    ),
    max_size=2,
)


@pytest.mark.slow
@examples(40)
@given(
    right=st.integers(0, 3),
    common=CHANGES,
    changes=st.one_of(st.just([]), CHANGES),
    batch_rows=st.sampled_from([50, 300, 1 << 16]),
)
def test_shortcuts_do_not_change_the_difference(
    traces: Traces,
    right: int,
    common: list[tuple[int, int, str]],
    changes: list[tuple[int, int, str]],
    batch_rows: int,
) -> None:
    def difference() -> Difference:
        streams = (
            [changed(traces[0].streams[0], common)],
            [changed(traces[right].streams[0], [*common, *changes])],
        )
        return diff_traces(traces[0], traces[right], streams)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_tables, "BATCH_ROWS", batch_rows)
        found = difference()
        patch.setattr(compare_paths, "_skip_equal_rows", lambda *_: 0)
        patch.setattr(Stream, "has_equal_input", lambda *_: False)
        assert found == difference()


def test_equal_recordings_are_counted_and_not_compared(
    traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtit.diff.diff_traces.describe_paths", None)
    found = diff_traces(traces[0], traces[1])
    assert found.has_equal_paths
    assert found.equal_instructions == sum(traces[0].traced_instructions.values())
    assert not found.gaps


def test_equal_rows_of_other_packets_are_skipped(
    traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = []
    skip_equal_rows = compare_paths._skip_equal_rows

    def skip(*paths: compare_paths.ExecutionPath) -> int:
        skipped.append(skip_equal_rows(*paths))
        return skipped[0]

    monkeypatch.setattr(compare_paths, "_skip_equal_rows", skip)
    monkeypatch.setattr(build_tables, "BATCH_ROWS", 300)
    found = diff_traces(traces[0], traces[2])
    assert found.has_equal_paths
    assert 0 < skipped[0] < found.equal_instructions
