"""Every result of a recording, decoded by the fast path and by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from os import PathLike
from typing import Any

from rtit._core import Column, StreamDecoder
from rtit.trace import Settings, Stream, Trace

RESULTS: dict[str, Callable[[StreamDecoder], Any]] = {
    "count": StreamDecoder.count,
    "totals": lambda flow: comparable_columns(flow.totals()),
    "rows": lambda flow: digest(flow.rows),
    "runs": lambda flow: digest(flow.runs),
    "instructions": lambda flow: digest(flow.instructions),
}


def assert_interpreter_agrees(recording: str | PathLike[str]) -> int:
    """Assert that both paths agree for each stream of a recording; return how many there are."""
    with Trace(recording) as trace:
        streams = [stream for stream in trace.streams if stream.size]
        for stream in streams:
            assert_stream_agrees(stream)
        return len(streams)


def assert_stream_agrees(stream: Stream) -> None:
    assert isinstance(stream.settings, Settings)
    interpreted = replace(stream, settings=replace(stream.settings, walk=True), _decoder=None)
    for name, result in RESULTS.items():
        found, expected = outcome(stream, result), outcome(interpreted, result)
        assert found == expected, name
    stream.discard_decoder()


def outcome(stream: Stream, result: Callable[[StreamDecoder], Any]) -> list[Any]:
    flow = stream.native_decoder()
    return [result(flow), flow.counts(), flow.ledger()]


def comparable_columns(columns: dict[str, Any]) -> dict[str, Any]:
    """Return columns as lists, because native columns compare by identity."""
    return {
        name: list(value) if isinstance(value, Column) else value for name, value in columns.items()
    }


def digest(take: Callable[[int], Any]) -> list[str]:
    """Return a digest of each column, independent of how the rows are cut into chunks."""
    digests: dict[int, Any] = {}
    for columns in chunks(take):
        for index, column in enumerate(columns):
            digests.setdefault(index, blake2b()).update(column)
    return [each.hexdigest() for each in digests.values()]


def chunks(take: Callable[[int], Any]) -> Iterator[Iterable[bytes]]:
    while (columns := take(10_000)) is not None:
        yield columns.values() if isinstance(columns, dict) else columns
