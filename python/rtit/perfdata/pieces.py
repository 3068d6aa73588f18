"""Where a file has its AUX data: behind AUXTRACE records, and in samples."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rtit.errors import PerfDataError

from . import records
from .attr import SampleType
from .auxtrace import Piece, Queue
from .clock import TimeConversion
from .decode import Decoder
from .features import Event
from .parts import Part
from .records import IdIndex
from .sample import SampleLayouts
from .sample_body import aux_data
from .scan import Behind

_Who = tuple[int | None, int | None]
_BUFFERS, _OF_BUFFER = 1 << 14, 1 << 13
_PIECES, _OF_PIECE = 1 << 16, 1 << 10
"""So many are kept of any file, and one more for so many bytes that it has: the file has room for
one in a hundred bytes.
"""
_KEPT_OF_BUFFER, _KEPT_OF_PIECE = 3 << 10, 576
"""Bytes that each takes, about; a buffer with all that is known of its stream."""


class Queues:
    """The pieces of every buffer, of parts that have `size` bytes together."""

    def __init__(self, size: int, source: str) -> None:
        self.found: dict[Queue, list[Piece]] = {}
        self.beyond = 0
        """Bytes in buffers beyond those that are kept."""
        self._buffers = _BUFFERS + size // _OF_BUFFER
        self._pieces = self._most_pieces = _PIECES + size // _OF_PIECE
        self._source = source

    def add(self, queue: Queue, piece: Piece) -> None:
        """Raises PerfDataError for more pieces than are kept of a file of the size."""
        own = self.found.get(queue)
        if own is None:
            if len(self.found) >= self._buffers:
                self.beyond += piece.size
                return
            own = self.found[queue] = []
        self._pieces -= 1
        if self._pieces < 0:
            message = f"more than {self._most_pieces:,} pieces of AUX data in a file of its size"
            raise PerfDataError(message, source=self._source, offset=piece.file_offset)
        own.append(piece)


def size_of(parts: Iterable[Part]) -> int:
    """Bytes, of all parts."""
    return sum(len(part.view) for part in parts)


def kept_of(found: Mapping[Queue, Sequence[Piece]]) -> int:
    """Bytes that these take, about, and what is known of their streams."""
    return _KEPT_OF_BUFFER * len(found) + _KEPT_OF_PIECE * sum(map(len, found.values()))


def buffers(parts: Sequence[Part], layouts: SampleLayouts, source: str, behind: Behind) -> Queues:
    """The data of AUXTRACE records, in the order of the file. `behind` follows the first part,
    which is the file.
    """
    queues = Queues(size_of(parts), source)
    for number, part in enumerate(parts):
        decoder = Decoder(part.view, layouts, source)
        for place in part.scan.noted[records.Auxtrace.layout.number]:
            if number == 0:
                behind.at(place.offset)
            record = decoder.as_type(records.Auxtrace, place)
            start = place.offset + place.size
            queue = Queue(record.cpu, -1) if record.cpu >= 0 else Queue(-1, record.tid)
            queues.add(
                queue,
                Piece(
                    file_offset=start,
                    aux_offset=record.aux_offset,
                    reference=record.reference,
                    idx=record.idx,
                    tid=record.tid,
                    cpu=record.cpu,
                    data=part.view[start : start + record.length],
                    part=number,
                ),
            )
    return queues


def in_samples(events: Iterable[Event]) -> bool:
    """Whether samples of any event carry AUX data."""
    return any(
        event.attr.sample_type & SampleType.AUX and event.attr.aux_sample_size for event in events
    )


def samples(
    parts: Sequence[Part],
    layouts: SampleLayouts,
    source: str,
    events: Sequence[Event],
    ids: Ids,
    convert: TimeConversion | None,
) -> Queues:
    """The AUX data of samples, in the order of the file; a sample's buffer is that of its id, if
    `ids` knows it, else that of its CPU or thread.
    """
    queues = Queues(size_of(parts), source)
    for number, part in enumerate(parts):
        decoder = Decoder(part.view, layouts, source)
        for place in part.scan.walk():
            if place.number != records.SAMPLE:
                continue
            start, record = decoder.sample_body(place)
            if record is None or record.sample_id is None:
                continue
            body = part.view[start : place.offset + place.size]
            data = aux_data(events[record.event].attr, body)
            if data is None:
                continue
            who = record.sample_id
            cpu, tid = ids.get(who.id or 0, (who.cpu, who.tid))
            queue = Queue(cpu, -1) if cpu is not None and cpu >= 0 else Queue(-1, tid or 0)
            ticks = convert.to_tsc(who.time) if convert is not None and who.time else 0
            queues.add(
                queue,
                Piece(
                    file_offset=start,
                    aux_offset=0,
                    reference=ticks,
                    idx=0,
                    tid=queue.tid,
                    cpu=queue.cpu,
                    data=data,
                    part=number,
                ),
            )
    return queues


class Ids:
    """Of event ids the CPU and the thread that ID_INDEX has for them, -1 each: any."""

    def __init__(self, index: Iterable[IdIndex] = ()) -> None:
        self._ids, self._cpus, self._tids = array("Q"), array("q"), array("q")
        for record in index:
            for number, _, cpu, tid in record.entries:
                if cpu >= 0 or tid >= 0:
                    self._ids.append(number)
                    self._cpus.append(cpu)
                    self._tids.append(tid)
        if any(before > after for before, after in pairwise(self._ids)):
            order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
            for column in (self._ids, self._cpus, self._tids):
                column[:] = array(column.typecode, [column[place] for place in order])

    def get(self, number: int, otherwise: _Who) -> _Who:
        """Of an id that is there several times the last."""
        place = bisect_right(self._ids, number) - 1
        if place < 0 or self._ids[place] != number:
            return otherwise
        return self._cpus[place], self._tids[place]
