"""Where the fields of a SAMPLE and of a sample_id are, given the event's sample_type.

Source: perf_event_open(2), PERF_RECORD_SAMPLE and sample_id. The two have the same fields in
different order; cpu has four reserved bytes behind it.
"""

from __future__ import annotations

import struct

from .attr import Attr, SampleType
from .records import SampleId

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
