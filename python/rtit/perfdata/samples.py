"""Where the fields of a SAMPLE and of a sample_id are, given the event's sample_type.

Source: perf_event_open(2), PERF_RECORD_SAMPLE and sample_id. The two have the same fields in
different order; cpu has four reserved bytes behind it.

What a SAMPLE has behind its fixed fields: parts that say how long they are, or whose event does.

Source: perf_event_open(2), PERF_RECORD_SAMPLE; the parts are in the order of the table here.

From bytes to typed records, as the table in `records` declares them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from rtit.errors import PerfDataError
from rtit.perfdata import records
from rtit.perfdata.attr import Attr, SampleType
from rtit.perfdata.file_scan import Place
from rtit.perfdata.records import HEADER, Record, SampleId, Tail, text

_Row = tuple[SampleType, str, tuple[str, ...]]

_SAMPLE_ID: tuple[_Row, ...] = (
    (SampleType.TID, "ii", ("pid", "tid")),
    (SampleType.TIME, "Q", ("time",)),
    (SampleType.ID, "Q", ("id",)),
    (SampleType.STREAM_ID, "Q", ("stream_id",)),
    (SampleType.CPU, "i4x", ("cpu",)),
    (SampleType.IDENTIFIER, "Q", ("id",)),
)
_SAMPLE: tuple[_Row, ...] = (
    (SampleType.IDENTIFIER, "Q", ("id",)),
    (SampleType.IP, "Q", ("ip",)),
    (SampleType.TID, "ii", ("pid", "tid")),
    (SampleType.TIME, "Q", ("time",)),
    (SampleType.ADDR, "Q", ("address",)),
    (SampleType.ID, "Q", ("id",)),
    (SampleType.STREAM_ID, "Q", ("stream_id",)),
    (SampleType.CPU, "i4x", ("cpu",)),
    (SampleType.PERIOD, "Q", ("period",)),
)


def _layout(rows: tuple[_Row, ...], sample_type: int) -> tuple[struct.Struct, list[str]]:
    chosen = [row for row in rows if row[0] & sample_type]
    names = [name for row in chosen for name in row[2]]
    return struct.Struct("<" + "".join(row[1] for row in chosen)), names


class SampleLayout:
    """How the records of one event say who, when and where."""

    def __init__(self, attr: Attr) -> None:
        self.sample_type = attr.sample_type
        self.sample_id_all = attr.sample_id_all
        self._id, self._id_names = _layout(_SAMPLE_ID, attr.sample_type)
        self._sample, self._sample_names = _layout(_SAMPLE, attr.sample_type)

    @property
    def id_size(self) -> int:
        """Bytes of the sample_id of the kernel's other records; 0 without sample_id_all."""
        return self._id.size if self.sample_id_all else 0

    @property
    def sample_size(self) -> int:
        """Bytes of the fields of a SAMPLE up to the period."""
        return self._sample.size

    def read_id(self, data: memoryview, offset: int) -> SampleId:
        """The sample_id at `offset`; the caller has checked that `id_size` bytes are there."""
        values = self._id.unpack_from(data, offset)
        return SampleId(**dict(zip(self._id_names, values, strict=True)))

    def read_sample(self, data: memoryview, offset: int) -> dict[str, int]:
        """The fixed fields of a SAMPLE by name; the caller has checked that `sample_size` bytes are
        there.
        """
        values = self._sample.unpack_from(data, offset)
        return dict(zip(self._sample_names, values, strict=True))

    def write_id(self, **values: int) -> bytes:
        """A sample_id. `values` has the fields that the sample_type asks for; ValueError if one
        does not fit.
        """
        try:
            return self._id.pack(*(values[name] for name in self._id_names))
        except struct.error as error:
            raise ValueError(f"sample_id: {error}") from error


class SampleLayouts:
    """The layouts of all events of a file, and which one a record follows."""

    def __init__(self, events: list[tuple[Attr, tuple[int, ...]]]) -> None:
        self._all = [SampleLayout(attr) for attr, _ in events]
        self._by_id = {
            number: index for index, (_, ids) in enumerate(events) for number in reversed(ids)
        }
        kinds = {(layout.sample_type, layout.sample_id_all) for layout in self._all}
        self._one = len(kinds) == 1
        self._identified = bool(self._all) and all(
            layout.sample_type & SampleType.IDENTIFIER for layout in self._all
        )

    def of_record(self, data: memoryview, start: int, end: int) -> SampleLayout | None:
        """The layout of the record (not a SAMPLE) at `start`; None if the file has no events.

        A record that perf made up names event 0: it follows the first.
        """
        if not self._all:
            return None
        if self._one or not self._identified or end - start < 16:
            return self._all[0]
        identifier: int = struct.unpack_from("<Q", data, end - 8)[0]
        return self._all[self._by_id.get(identifier, 0)]

    def of_sample(self, data: memoryview, start: int, end: int) -> tuple[int, SampleLayout] | None:
        """(index of the event, its layout) for the SAMPLE between the offsets; None if there is no
        telling.
        """
        if len(self._all) == 1:
            return 0, self._all[0]
        if not self._identified or end - start < 16:
            return None
        identifier: int = struct.unpack_from("<Q", data, start + 8)[0]
        index = self._by_id.get(identifier)
        return None if index is None else (index, self._all[index])


_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_ENABLED, _RUNNING, _ID, _GROUP, _LOST = (1 << bit for bit in range(5))
_HW_INDEX, _COUNTERS = 1 << 17, 1 << 19
_ENTRY = 24
"""Bytes of an entry of a branch stack."""

_Size = Callable[[Attr, memoryview], int]
"""Bytes of a part that begins a memory; raises struct.error where that ends."""


def _read(attr: Attr, data: memoryview) -> int:
    shape = attr.read_format
    times = bool(shape & _ENABLED) + bool(shape & _RUNNING)
    each = 1 + bool(shape & _ID) + bool(shape & _LOST)
    count = _U64.unpack_from(data)[0] if shape & _GROUP else 1
    return 8 * (bool(shape & _GROUP) + times + count * each)


def _callchain(_: Attr, data: memoryview) -> int:
    return 8 + 8 * int(_U64.unpack_from(data)[0])


def _raw(_: Attr, data: memoryview) -> int:
    return 4 + int(_U32.unpack_from(data)[0])


def _branches(attr: Attr, data: memoryview) -> int:
    count = int(_U64.unpack_from(data)[0])
    more = 8 * bool(attr.branch_sample_type & _HW_INDEX)
    counters = 8 * count if attr.branch_sample_type & _COUNTERS else 0
    return 8 + more + _ENTRY * count + counters


def _registers(mask: int, data: memoryview) -> int:
    return 8 + 8 * mask.bit_count() * bool(_U64.unpack_from(data)[0])


def _registers_user(attr: Attr, data: memoryview) -> int:
    return _registers(attr.sample_regs_user, data)


def _registers_intr(attr: Attr, data: memoryview) -> int:
    return _registers(attr.sample_regs_intr, data)


def _stack(_: Attr, data: memoryview) -> int:
    size = int(_U64.unpack_from(data)[0])
    return 16 + size if size else 8


def _one(_: Attr, _data: memoryview) -> int:
    return 8


def _aux(_: Attr, data: memoryview) -> int:
    return 8 + int(_U64.unpack_from(data)[0])


_PARTS: tuple[tuple[int, _Size], ...] = (
    (SampleType.READ, _read),
    (SampleType.CALLCHAIN, _callchain),
    (SampleType.RAW, _raw),
    (SampleType.BRANCH_STACK, _branches),
    (SampleType.REGS_USER, _registers_user),
    (SampleType.STACK_USER, _stack),
    (SampleType.WEIGHT | SampleType.WEIGHT_STRUCT, _one),
    (SampleType.DATA_SRC, _one),
    (SampleType.TRANSACTION, _one),
    (SampleType.REGS_INTR, _registers_intr),
    (SampleType.PHYS_ADDR, _one),
    (SampleType.CGROUP, _one),
    (SampleType.DATA_PAGE_SIZE, _one),
    (SampleType.CODE_PAGE_SIZE, _one),
    (SampleType.AUX, _aux),
)


def part(attr: Attr, kind: SampleType, body: memoryview) -> memoryview | None:
    """The part `kind` of a SAMPLE of the event `attr`, with its own size; `body` begins behind the
    period. None if it is not there, or if the parts do not fit.
    """
    at = 0
    for number, size_of in _PARTS:
        if not attr.sample_type & number:
            continue
        try:
            size = size_of(attr, body[at:])
        except struct.error:
            return None
        if at + size > len(body):
            return None
        if number & kind:
            return body[at : at + size]
        at += size
    return None


def aux_data(attr: Attr, body: memoryview) -> memoryview | None:
    """The AUX data of a SAMPLE; None without any."""
    found = part(attr, SampleType.AUX, body)
    return found[_U64.size :] if found is not None and len(found) > _U64.size else None


def raw_data(attr: Attr, body: memoryview) -> memoryview | None:
    """The raw data of a SAMPLE of a tracepoint; None without any."""
    found = part(attr, SampleType.RAW, body)
    return found[_U32.size :] if found is not None else None


_AnyRecord = TypeVar("_AnyRecord", bound=Record)
_SAMPLE_ID_FIELDS = ("pid", "tid", "time", "id", "stream_id", "cpu")


class Decoder:
    """Decodes the records of one file, whose places `Scan` has checked."""

    def __init__(self, file: memoryview, layouts: SampleLayouts, source: str) -> None:
        self._file = file
        self._layouts = layouts
        self._source = source

    def record(self, place: Place) -> Record:
        """The record at a place. Raises PerfDataError if it is too short."""
        if place.number == records.SAMPLE:
            return self._sample(place)
        end = place.offset + place.size
        sample_id = None
        if place.number < records.FIRST_USER_TYPE:
            layout = self._layouts.of_record(self._file, place.offset, end)
            if layout is not None and layout.id_size:
                end -= layout.id_size
                if end < place.offset + HEADER.size:
                    raise self._too_short(place)
                sample_id = layout.read_id(self._file, end)
        cls = records.TABLE.get(place.number)
        if cls is None:
            body = bytes(self._file[place.offset + HEADER.size : end])
            return records.Raw(*place, sample_id, body)
        return self._typed(cls, place, sample_id, end)

    def as_type(self, cls: type[_AnyRecord], place: Place) -> _AnyRecord:
        """The record at a place, which has no sample_id, as `cls` whatever its type number says."""
        return self._typed(cls, place, None, place.offset + place.size)

    def _typed(
        self, cls: type[_AnyRecord], place: Place, sample_id: SampleId | None, end: int
    ) -> _AnyRecord:
        layout = cls.layout
        at = place.offset + HEADER.size
        rest = at + layout.fixed.size
        if rest > end:
            raise self._too_short(place)
        values = layout.fixed.unpack_from(self._file, at)
        if layout.tail is Tail.STRING:
            values += (text(self._file[rest:end]),)
        elif layout.tail is Tail.BYTES:
            values += (bytes(self._file[rest:end]),)
        record = cls(*place, sample_id, *values)
        problem = record.problem()
        if problem:
            raise PerfDataError(problem, source=self._source, offset=place.offset, value=place.size)
        return record

    def _sample(self, place: Place) -> Record:
        at, record = self.sample_body(place)
        body = bytes(self._file[at : place.offset + place.size])
        if record is None:
            return records.Raw(*place, None, body)
        record.body = body
        return record

    def sample_body(self, place: Place) -> tuple[int, records.Sample | None]:
        """Where the body of a SAMPLE begins, and the sample without it; None if there is no telling
        of which event it is, then the body is all. Raises PerfDataError if it is too short.
        """
        at = place.offset + HEADER.size
        end = place.offset + place.size
        found = self._layouts.of_sample(self._file, place.offset, end)
        if found is None:
            return at, None
        event, layout = found
        if at + layout.sample_size > end:
            raise self._too_short(place)
        fields = layout.read_sample(self._file, at)
        who = SampleId(**{name: fields[name] for name in _SAMPLE_ID_FIELDS if name in fields})
        values = (fields.get("ip"), fields.get("address"), fields.get("period"))
        return at + layout.sample_size, records.Sample(*place, who, event, *values, b"")

    def _too_short(self, place: Place) -> PerfDataError:
        name = records.NAMES.get(place.number, f"TYPE_{place.number}")
        return PerfDataError(
            f"a {name} record is too short",
            source=self._source,
            offset=place.offset,
            value=place.size,
        )
