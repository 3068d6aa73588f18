"""Every result of a recording, decoded by the table of steps and by the walker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from os import PathLike
from typing import Any

from rtit._core import Flow
from rtit.trace import Settings, Stream, Trace

WAYS: dict[str, Callable[[Flow], Any]] = {
    "count": Flow.count,
    "totals": Flow.totals,
    "rows": lambda flow: digest(flow.next),
    "runs": lambda flow: digest(flow.runs),
    "instructions": lambda flow: digest(flow.ips),
}


def same_as_walked(recording: str | PathLike[str]) -> int:
    """Asserts that steps change nothing in any stream of a recording; how many there were."""
    with Trace(recording) as trace:
        streams = [stream for stream in trace.streams if stream.size]
        for stream in streams:
            assert_same(stream)
        return len(streams)


def assert_same(stream: Stream) -> None:
    assert isinstance(stream.settings, Settings)
    walked = replace(stream, settings=replace(stream.settings, walk=True), _flow=None)
    for name, way in WAYS.items():
        found, expected = outcome(stream, way), outcome(walked, way)
        assert found == expected, name
    stream.forget()


def outcome(stream: Stream, way: Callable[[Flow], Any]) -> list[Any]:
    flow = stream.native()
    return [way(flow), flow.counts(), flow.ledger()]


def digest(take: Callable[[int], Any]) -> list[str]:
    """A digest of each column, however the rows are cut into chunks."""
    digests: dict[int, Any] = {}
    for columns in chunks(take):
        for index, column in enumerate(columns):
            digests.setdefault(index, blake2b()).update(column)
    return [each.hexdigest() for each in digests.values()]


def chunks(take: Callable[[int], Any]) -> Iterator[Iterable[bytes]]:
    while (columns := take(10_000)) is not None:
        yield columns.values() if isinstance(columns, dict) else columns
