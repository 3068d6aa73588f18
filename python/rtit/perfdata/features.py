"""Features of a perf.data file: optional data about the machine, the recorder and the events.

The layouts are in tools/perf/Documentation/perf.data-file-format.txt of Linux. Each has a function
`pack_...` to write it or `unpack_...` to read it.

rtit's own facts about a recording are in CPUDESC, a free text that stock perf only prints. The form
is `rtit: key=value; key=value`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from rtit.perfdata import records
from rtit.perfdata.attr import Attr
from rtit.perfdata.records import Cursor


class Feature(IntEnum):
    """HEADER_*: a bit of the file header's flags, and `feature` of a HEADER_FEATURE record.

    Only the features that this project uses.
    """

    BUILD_ID = 2
    HOSTNAME = 3
    OSRELEASE = 4
    VERSION = 5
    ARCH = 6
    NRCPUS = 7
    CPUDESC = 8
    CPUID = 9
    CMDLINE = 11
    EVENT_DESC = 12
    PMU_MAPPINGS = 16
    AUXTRACE = 18
    BPF_PROG_INFO = 25
    COMPRESSED_TYPES = 27
    CLOCK_DATA = 29


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the file: its attr, the ids that records refer to, and its name."""

    attr: Attr
    ids: tuple[int, ...]
    name: str


@dataclass(frozen=True, slots=True)
class WallClock:
    """CLOCK_DATA: clock `clockid` (CLOCK_* of Linux) was at `clock` ns when UTC was `wall`, in ns
    since 1970.
    """

    clockid: int
    wall: int
    clock: int


_U32 = struct.Struct("<I")
_CLOCKS = struct.Struct("<IIQQ")
_U32_PAIR = struct.Struct("<II")
_U64 = struct.Struct("<Q")
_U64_PAIR = struct.Struct("<QQ")
_STRING_ALIGNMENT = 64
_FACTS = "rtit:"
_MAX_ENTRIES = 1 << 20
"""Words of a command line, ids of an event."""


def pack_string(value: str) -> bytes:
    """Return a perf header string: u32 length, then the text with its NUL, padded to 64 bytes."""
    data = os.fsencode(value) + b"\0"
    data += bytes(-len(data) % _STRING_ALIGNMENT)
    return _U32.pack(len(data)) + data


def pack_strings(values: Sequence[str]) -> bytes:
    """CMDLINE: u32 count, then the strings."""
    return _U32.pack(len(values)) + b"".join(map(pack_string, values))


def unpack_strings(at: Cursor) -> list[str]:
    """Return the strings of CMDLINE."""
    return [at.read_string() for _ in range(_check_entry_count(at, at.read_u32(), 4))]


def pack_cpus(available: int, online: int) -> bytes:
    """NRCPUS."""
    return _U32_PAIR.pack(available, online)


def pack_events(events: Sequence[Event]) -> bytes:
    """EVENT_DESC: attrs with ids and names."""
    size = events[0].attr.size if events else 0
    return _U32_PAIR.pack(len(events), size) + b"".join(
        event.attr.encode()
        + _U32.pack(len(event.ids))
        + pack_string(event.name)
        + b"".join(map(_U64.pack, event.ids))
        for event in events
    )


def unpack_events(at: Cursor) -> list[Event]:
    """Return the events of EVENT_DESC."""
    count, size = at.unpack_struct(_U32_PAIR)
    events = []
    all_ids = 0
    for _ in range(_check_entry_count(at, count, size + 8)):
        attr = Attr.decode(at.read(size))
        number = at.read_u32()
        all_ids += number
        name = at.read_string()
        _check_entry_count(at, all_ids, 0)
        ids = at.read(8 * number)
        events.append(Event(attr, tuple(value for (value,) in _U64.iter_unpack(ids)), name))
    return events


def pack_pmus(pmus: Mapping[int, str]) -> bytes:
    """PMU_MAPPINGS: attr.type -> name of the PMU."""
    return _U32.pack(len(pmus)) + b"".join(
        _U32.pack(number) + pack_string(name) for number, name in pmus.items()
    )


def unpack_pmus(at: Cursor) -> dict[int, str]:
    """Return attr.type -> name of the PMU."""
    return {
        at.read_u32(): at.read_string() for _ in range(_check_entry_count(at, at.read_u32(), 8))
    }


def unpack_wall_clock(at: Cursor) -> WallClock:
    """CLOCK_DATA: u32 version, u32 clockid, u64 wall clock, u64 that clock, both in ns."""
    _, clockid, wall, clock = at.unpack_struct(_CLOCKS)
    return WallClock(clockid, wall, clock)


def pack_auxtrace_index(entries: Iterable[int]) -> bytes:
    """AUXTRACE: the file offset of each AUXTRACE record, with its size without the data."""
    size = records.RECORD_HEADER.size + records.Auxtrace.layout.fixed.size
    body = b"".join(_U64_PAIR.pack(offset, size) for offset in entries)
    return _U64.pack(len(body) // _U64_PAIR.size) + body


def pack_build_ids(build_ids: Mapping[str, bytes]) -> bytes:
    """BUILD_ID: a HEADER_BUILD_ID record for each path; ValueError for ids above 20 bytes."""
    out = bytearray()
    for path, build_id in build_ids.items():
        if len(build_id) > 20:
            raise ValueError(f"the build id of {path} has {len(build_id)} bytes; at most 20 fit")
        name = os.fsencode(path) + b"\0"
        out += records.encode(
            records.BuildId,
            -1,
            struct.pack("<20sB3x", build_id, len(build_id)),
            tail=(name + bytes(-len(name) % _STRING_ALIGNMENT))[:-1],
            misc=records.Misc.USER | records.Misc.BUILD_ID_SIZE,
        )
    return bytes(out)


def format_facts(facts: Mapping[str, str]) -> str:
    """Return the text of CPUDESC for facts. ValueError if a key or value has a separator."""
    for key, value in facts.items():
        stripped = key == key.strip() != "" and value == value.strip()
        if not stripped or set("=;\0\n") & set(key) or set(";\0\n") & set(value):
            raise ValueError(f"{key!r}: {value!r} cannot be written as a fact")
    return f"{_FACTS} " + "; ".join(f"{key}={value}" for key, value in facts.items())


def parse_facts(description: str) -> dict[str, str]:
    """Return the facts in a CPUDESC; empty if rtit did not write it."""
    if not description.startswith(_FACTS):
        return {}
    pairs = (part.partition("=") for part in description[len(_FACTS) :].split(";"))
    return {key.strip(): value.strip() for key, separator, value in pairs if separator}


def _check_entry_count(at: Cursor, count: int, size: int) -> int:
    """Return `count` if the rest of the data can have so many entries of at least `size` bytes.

    Raises PerfDataError otherwise, and for more entries than a real recording has: a huge file can
    be one hole.
    """
    if count > _MAX_ENTRIES:
        raise at.error(f"more than {_MAX_ENTRIES} entries", count)
    if count * size > at.remaining:
        raise at.error(f"more entries than {at.remaining} bytes hold", count)
    return count
