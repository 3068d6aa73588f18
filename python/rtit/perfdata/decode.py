"""From bytes to typed records, as the table in `records` declares them."""

from __future__ import annotations

from typing import TypeVar

from rtit.errors import PerfDataError

from . import records
from .cursor import text
from .records import HEADER, Record, SampleId, Tail
from .sample import SampleLayouts
from .scan import Place

_R = TypeVar("_R", bound=Record)
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

    def as_type(self, cls: type[_R], place: Place) -> _R:
        """The record at a place, which has no sample_id, as `cls` whatever its type number says."""
        return self._typed(cls, place, None, place.offset + place.size)

    def _typed(self, cls: type[_R], place: Place, sample_id: SampleId | None, end: int) -> _R:
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
