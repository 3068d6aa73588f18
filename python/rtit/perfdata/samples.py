"""Decoding of records, which depends on the sample_type of their event.

A SAMPLE has fixed fields, then variable fields, in the order of the tables here (source:
perf_event_open(2), PERF_RECORD_SAMPLE). attr.sample_type says which of them are present. All other
records of the kernel end with a sample_id, which has some of the same fields in another order.
`SampleLayouts` therefore first finds the event of a record. `RecordDecoder` then decodes the record
as its class in `records` declares it. Variable fields stay undecoded until `sample_field` is
called.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from rtit.errors import PerfDataError
from rtit.perfdata import records
from rtit.perfdata.attr import Attr, SampleType
from rtit.perfdata.file_scan import RecordHeader
from rtit.perfdata.records import RECORD_HEADER, Record, SampleId, Tail, decode_text

_Field = tuple[SampleType, str, tuple[str, ...]]
"""Bit of sample_type, format for `struct`, names of the values."""

_SAMPLE_ID: tuple[_Field, ...] = (
    (SampleType.TID, "ii", ("pid", "tid")),
    (SampleType.TIME, "Q", ("time",)),
    (SampleType.ID, "Q", ("id",)),
    (SampleType.STREAM_ID, "Q", ("stream_id",)),
    (SampleType.CPU, "i4x", ("cpu",)),
    (SampleType.IDENTIFIER, "Q", ("id",)),
)
_SAMPLE: tuple[_Field, ...] = (
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


def _struct_of_sample_type(
    fields: tuple[_Field, ...], sample_type: int
) -> tuple[struct.Struct, list[str]]:
    present = [(format_, names) for bit, format_, names in fields if bit & sample_type]
    all_names = [name for _, names in present for name in names]
    return struct.Struct("<" + "".join(format_ for format_, _ in present)), all_names


class SampleLayout:
    """The layout of a sample_id, and of the fixed fields of a SAMPLE, for one event."""

    def __init__(self, attr: Attr) -> None:
        self.sample_type = attr.sample_type
        self.sample_id_all = attr.sample_id_all
        self._id, self._id_names = _struct_of_sample_type(_SAMPLE_ID, attr.sample_type)
        self._sample_struct, self._sample_names = _struct_of_sample_type(_SAMPLE, attr.sample_type)

    @property
    def id_size(self) -> int:
        """Bytes of the sample_id of records other than SAMPLE; 0 without sample_id_all."""
        return self._id.size if self.sample_id_all else 0

    @property
    def sample_size(self) -> int:
        """Bytes of the fixed fields of a SAMPLE."""
        return self._sample_struct.size

    def read_id(self, data: memoryview, offset: int) -> SampleId:
        """Return the sample_id at `offset`. The caller checks that it has `id_size` bytes."""
        values = self._id.unpack_from(data, offset)
        return SampleId(**dict(zip(self._id_names, values, strict=True)))

    def read_sample(self, data: memoryview, offset: int) -> dict[str, int]:
        """Return the fixed fields of a SAMPLE. The caller checks for `sample_size` bytes."""
        values = self._sample_struct.unpack_from(data, offset)
        return dict(zip(self._sample_names, values, strict=True))

    def write_id(self, **values: int) -> bytes:
        """Encode a sample_id from the fields in sample_type. ValueError if one does not fit."""
        try:
            return self._id.pack(*(values[name] for name in self._id_names))
        except struct.error as error:
            raise ValueError(f"sample_id: {error}") from error


class SampleLayouts:
    """The layouts of all events of a file, found by record.

    `events` are (attr, ids). Only IDENTIFIER is at a position that does not depend on the layout;
    without it several events with different layouts cannot be told apart.
    """

    def __init__(self, events: list[tuple[Attr, tuple[int, ...]]]) -> None:
        self._all = [SampleLayout(attr) for attr, _ in events]
        self._by_id = {
            number: index for index, (_, ids) in enumerate(events) for number in reversed(ids)
        }
        kinds = {(layout.sample_type, layout.sample_id_all) for layout in self._all}
        self._has_one_kind = len(kinds) == 1
        self._has_identifiers = bool(self._all) and all(
            layout.sample_type & SampleType.IDENTIFIER for layout in self._all
        )

    def for_record(self, data: memoryview, start: int, end: int) -> SampleLayout | None:
        """Return the layout of the record (not a SAMPLE) at `start`; None without events.

        Records that perf synthesizes have the id 0; they have the layout of the first event.
        """
        if not self._all:
            return None
        if self._has_one_kind or not self._has_identifiers or end - start < 16:
            return self._all[0]
        identifier: int = struct.unpack_from("<Q", data, end - 8)[0]
        return self._all[self._by_id.get(identifier, 0)]

    def for_sample(self, data: memoryview, start: int, end: int) -> tuple[int, SampleLayout] | None:
        """Return (index of the event, its layout) of a SAMPLE; None if the event is unknown."""
        if len(self._all) == 1:
            return 0, self._all[0]
        if not self._has_identifiers or end - start < 16:
            return None
        identifier: int = struct.unpack_from("<Q", data, start + 8)[0]
        index = self._by_id.get(identifier)
        return None if index is None else (index, self._all[index])


_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_ENABLED, _RUNNING, _ID, _GROUP, _LOST = (1 << bit for bit in range(5))
_HW_INDEX, _COUNTERS = 1 << 17, 1 << 19
_BRANCH_ENTRY = 24

_FieldSize = Callable[[Attr, memoryview], int]
"""Returns the bytes of the field at the start of `data`; raises struct.error if that is too short.
"""


def _unpack_u64(data: memoryview) -> int:
    return int(_U64.unpack_from(data)[0])


def _read_size(attr: Attr, data: memoryview) -> int:
    shape = attr.read_format
    times = bool(shape & _ENABLED) + bool(shape & _RUNNING)
    words_per_event = 1 + bool(shape & _ID) + bool(shape & _LOST)
    count = _unpack_u64(data) if shape & _GROUP else 1
    return 8 * (bool(shape & _GROUP) + times + count * words_per_event)


def _branch_stack_size(attr: Attr, data: memoryview) -> int:
    count = _unpack_u64(data)
    hw_index = 8 * bool(attr.branch_sample_type & _HW_INDEX)
    counters = 8 * count if attr.branch_sample_type & _COUNTERS else 0
    return 8 + hw_index + _BRANCH_ENTRY * count + counters


def _registers_size(mask: int, data: memoryview) -> int:
    return 8 + 8 * mask.bit_count() * bool(_unpack_u64(data))


def _stack_size(_: Attr, data: memoryview) -> int:
    size = _unpack_u64(data)
    return 16 + size if size else 8


_VARIABLE_FIELDS: tuple[tuple[int, _FieldSize], ...] = (
    (SampleType.READ, _read_size),
    (SampleType.CALLCHAIN, lambda _, data: 8 + 8 * _unpack_u64(data)),
    (SampleType.RAW, lambda _, data: 4 + int(_U32.unpack_from(data)[0])),
    (SampleType.BRANCH_STACK, _branch_stack_size),
    (SampleType.REGS_USER, lambda attr, data: _registers_size(attr.sample_regs_user, data)),
    (SampleType.STACK_USER, _stack_size),
    (SampleType.WEIGHT | SampleType.WEIGHT_STRUCT, lambda _, _data: 8),
    (SampleType.DATA_SRC, lambda _, _data: 8),
    (SampleType.TRANSACTION, lambda _, _data: 8),
    (SampleType.REGS_INTR, lambda attr, data: _registers_size(attr.sample_regs_intr, data)),
    (SampleType.PHYS_ADDR, lambda _, _data: 8),
    (SampleType.CGROUP, lambda _, _data: 8),
    (SampleType.DATA_PAGE_SIZE, lambda _, _data: 8),
    (SampleType.CODE_PAGE_SIZE, lambda _, _data: 8),
    (SampleType.AUX, lambda _, data: 8 + _unpack_u64(data)),
)


def sample_field(attr: Attr, field: SampleType, body: memoryview) -> memoryview | None:
    """Return a variable field of a SAMPLE, including its own size.

    `attr` is that of the event, `body` what follows the fixed fields. None if the field is not
    there or a field does not fit.
    """
    at = 0
    for bits, field_size in _VARIABLE_FIELDS:
        if not attr.sample_type & bits:
            continue
        try:
            size = field_size(attr, body[at:])
        except struct.error:
            return None
        if at + size > len(body):
            return None
        if bits & field:
            return body[at : at + size]
        at += size
    return None


def aux_data(attr: Attr, body: memoryview) -> memoryview | None:
    """Return the AUX data of a SAMPLE; None if it has none."""
    found = sample_field(attr, SampleType.AUX, body)
    return found[_U64.size :] if found is not None and len(found) > _U64.size else None


def raw_data(attr: Attr, body: memoryview) -> memoryview | None:
    """Return the raw data of a tracepoint's SAMPLE; None if it has none."""
    found = sample_field(attr, SampleType.RAW, body)
    return found[_U32.size :] if found is not None else None


_AnyRecord = TypeVar("_AnyRecord", bound=Record)
_SAMPLE_ID_FIELDS = ("pid", "tid", "time", "id", "stream_id", "cpu")


class RecordDecoder:
    """Decodes the records of one file. The headers are those that `RecordScan` has checked."""

    def __init__(self, file: memoryview, layouts: SampleLayouts, source: str) -> None:
        self._file = file
        self._layouts = layouts
        self._source = source

    def decode(self, header: RecordHeader) -> Record:
        """Return the record. Raises PerfDataError if it is too short."""
        if header.type == records.SAMPLE:
            return self._decode_sample(header)
        end = header.offset + header.size
        sample_id = None
        if header.type < records.FIRST_USER_TYPE:
            layout = self._layouts.for_record(self._file, header.offset, end)
            if layout is not None and layout.id_size:
                end -= layout.id_size
                if end < header.offset + RECORD_HEADER.size:
                    raise self._too_short(header)
                sample_id = layout.read_id(self._file, end)
        cls = records.RECORD_CLASSES.get(header.type)
        if cls is None:
            body = bytes(self._file[header.offset + RECORD_HEADER.size : end])
            return records.RawRecord(*header, sample_id, body)
        return self._decode_record_of_class(cls, header, sample_id, end)

    def decode_as(self, cls: type[_AnyRecord], header: RecordHeader) -> _AnyRecord:
        """Return a record without sample_id as `cls`, whatever its type number is."""
        return self._decode_record_of_class(cls, header, None, header.offset + header.size)

    def _decode_record_of_class(
        self, cls: type[_AnyRecord], header: RecordHeader, sample_id: SampleId | None, end: int
    ) -> _AnyRecord:
        layout = cls.layout
        at = header.offset + RECORD_HEADER.size
        rest = at + layout.fixed.size
        if rest > end:
            raise self._too_short(header)
        values = layout.fixed.unpack_from(self._file, at)
        if layout.tail is Tail.STRING:
            values += (decode_text(self._file[rest:end]),)
        elif layout.tail is Tail.BYTES:
            values += (bytes(self._file[rest:end]),)
        record = cls(*header, sample_id, *values)
        problem = record.problem()
        if problem:
            raise header.error(problem, self._source)
        return record

    def _decode_sample(self, header: RecordHeader) -> Record:
        at, record = self.decode_sample_head(header)
        body = bytes(self._file[at : header.offset + header.size])
        if record is None:
            return records.RawRecord(*header, None, body)
        record.body = body
        return record

    def decode_sample_head(self, header: RecordHeader) -> tuple[int, records.Sample | None]:
        """Return where the variable fields of a SAMPLE start, and the SAMPLE without them.

        If its event is unknown the SAMPLE is None. Raises PerfDataError if it is too short.
        """
        at = header.offset + RECORD_HEADER.size
        end = header.offset + header.size
        found = self._layouts.for_sample(self._file, header.offset, end)
        if found is None:
            return at, None
        event, layout = found
        if at + layout.sample_size > end:
            raise self._too_short(header)
        fields = layout.read_sample(self._file, at)
        sample_id = SampleId(**{name: fields[name] for name in _SAMPLE_ID_FIELDS if name in fields})
        values = (fields.get("ip"), fields.get("address"), fields.get("period"))
        return at + layout.sample_size, records.Sample(*header, sample_id, event, *values, b"")

    def _too_short(self, header: RecordHeader) -> PerfDataError:
        name = records.TYPE_NAMES.get(header.type, f"TYPE_{header.type}")
        return header.error(f"a {name} record is too short", self._source)
