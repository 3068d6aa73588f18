"""Lint and event decoding of arbitrary bytes give ordered, chunk-independent results."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lint.streams import ON
from rtit.image import Image
from rtit.linter import lint
from rtit.packets import iterate_packets
from rtit.scenario import load, run, shipped_scenarios
from rtit.trace import Settings, Stream
from rtit.trace.events import describe_event, event_to_dict
from support.streams import ChunkedBytes

RAW = [
    packet.raw
    for path in shipped_scenarios()[::9]
    for packet in iterate_packets(run(load(path)).raw)
]
STREAMS = st.one_of(
    st.binary(max_size=300),
    st.lists(st.sampled_from(RAW), max_size=60).map(lambda parts: ON + b"".join(parts)),
    st.lists(st.one_of(st.sampled_from(RAW), st.binary(max_size=9)), max_size=60).map(b"".join),
)


@given(STREAMS)
def test_findings_are_ordered_and_inside_the_stream(data: bytes) -> None:
    offsets = [finding.offset for finding in lint(data)]
    assert all(before <= after for before, after in pairwise(offsets))
    assert all(0 <= offset < len(data) for offset in offsets)


@given(STREAMS, st.integers(1, 40))
def test_findings_do_not_depend_on_chunks(data: bytes, step: int) -> None:
    parts = [data[start : start + step] for start in range(0, len(data), step)]
    assert list(lint(parts)) == list(lint(data))


@given(STREAMS)
def test_events_of_arbitrary_bytes_are_decoded(data: bytes) -> None:
    image = Image().add(0x40_1000, b"\x90" * 64)
    for happening in Stream(ChunkedBytes(data), image, Settings()).events():
        assert 0 <= happening.offset < len(data)
        name = event_to_dict(happening).get("name", happening.event_name)
        assert describe_event(happening).startswith(str(name))
