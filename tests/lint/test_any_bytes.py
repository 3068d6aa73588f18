"""Lint and event decoding of arbitrary bytes give ordered, chunk-independent results."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from lint.streams import (
    AWAKE,
    CBR,
    CYC,
    EXSTOP,
    FUP,
    ON,
    OVF,
    PGD,
    PGE,
    PSBEND,
    PTW,
    PWRE,
    PWRX,
    TIP,
    TMA,
    TNT,
    TSC,
    packet,
)
from rtit.image import Image
from rtit.linter import lint
from rtit.linter.checker import _StreamChecker
from rtit.packets import PSB, encode, iterate_packets, scan_chunks
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


NOT_CANONICAL = encode("TIP", ip_bytes=6, payload=0x1234 << 48)
BROKEN_OFF = TIP[:4] + PSB + CBR + PSBEND


@given(STREAMS)
@example(AWAKE + PTW + TNT)
@example(AWAKE + TSC + TNT + TMA)
@example(AWAKE + PGD + TNT)
@example(AWAKE + OVF + TNT)
@example(AWAKE + PGD + PWRX + TNT)
@example(AWAKE + PWRE + EXSTOP + FUP + TNT)
@example(AWAKE + FUP + packet("PTW", ip=0, payload_bytes=0, payload=5) + TNT + PGE)
@example(AWAKE + PSB + TNT)
@example(AWAKE + NOT_CANONICAL + TNT)
@example(AWAKE + NOT_CANONICAL + TNT + encode("TIP", ip_bytes=1, payload=5))
@example(AWAKE + TNT + CYC + packet("CYC", cycles=0) + TNT)
@example(AWAKE + TNT + BROKEN_OFF)
def test_skipped_packets_have_no_findings(data: bytes) -> None:
    data += TNT * 64  # the last packets of a stream are never skipped
    checker = _StreamChecker(None)
    every = [found for item in scan_chunks([data]) for found in checker.check_item(item)]
    assert list(lint(data)) == every


@given(STREAMS)
def test_events_of_arbitrary_bytes_are_decoded(data: bytes) -> None:
    image = Image().add(0x40_1000, b"\x90" * 64)
    for happening in Stream(ChunkedBytes(data), image, Settings()).events():
        assert 0 <= happening.offset < len(data)
        name = event_to_dict(happening).get("name", happening.event_name)
        assert describe_event(happening).startswith(str(name))
