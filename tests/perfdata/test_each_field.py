"""Each field of each record, attr and header, made wrong in turn: an error of ours or a partial
result, and nothing else.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from live import Recorder
from rtit.capture.ptrace import replay
from rtit.errors import RtitError
from rtit.perfdata import PerfData, Switches
from rtit.perfdata import records as perf
from rtit.perfdata.attr import _ATTR
from rtit.perfdata.header import FILE
from rtit.perfdata.record import HEADER, TABLE
from rtit.trace import Trace

ProgramBuilder = Callable[[str], Path]
AUXTRACE_INFO_WORDS = 18
SAMPLE_ID = "iiQiiQ"


class Field(NamedTuple):
    """`size` bytes at an offset of the file, and what they are for messages."""

    what: str
    offset: int
    size: int


def fields_of(layout: str, at: int, what: str) -> Iterator[Field]:
    place = at
    for number, code in enumerate(expanded(layout)):
        size = struct.calcsize("<" + code)
        if not code.endswith("x"):
            yield Field(f"{what}[{number}]", place, size)
        place += size


def expanded(layout: str) -> Iterator[str]:
    """One code a field."""
    count = ""
    for letter in layout.replace("<", "").replace(" ", ""):
        if letter.isdigit():
            count += letter
            continue
        if letter in "sx":
            yield f"{count or 1}{letter}"
        else:
            yield from letter * int(count or 1)
        count = ""


def every_field(path: Path) -> Iterator[Field]:
    """Of the header, of each attr, and of the first record of each kind."""
    yield from fields_of("8sQQQQQQQQ4Q", 0, "header")
    with PerfData(path) as data:
        attrs = data.header.attrs
        assert attrs is not None
        for start in range(attrs.offset, attrs.end, data.header.entry_size):
            yield from fields_of(_ATTR.format, start, "attr")
            yield from fields_of("QQ", start + data.header.entry_size - 16, "ids")
        end = data.header.data.end
        for number in range(len(data.header.features)):
            yield from fields_of("QQ", end + 16 * number, "feature")
        seen: dict[int, int] = {}
        for place in data._scan.walk():
            seen[place.number] = seen.get(place.number, 0) + 1
            if seen[place.number] > 1:
                continue
            name = perf.NAMES.get(place.number, str(place.number))
            yield from fields_of("IHH", place.offset, name)
            body = place.offset + HEADER.size
            if place.number in TABLE:
                fixed = TABLE[place.number].layout.fixed
                yield from fields_of(fixed.format, body, name)
                body += fixed.size
            if place.number == perf.AuxtraceInfo.layout.number:
                yield from fields_of(f"{AUXTRACE_INFO_WORDS}Q", body, name)
            tail = place.offset + place.size - struct.calcsize("<" + SAMPLE_ID)
            if place.number < perf.FIRST_USER_TYPE and tail >= body:
                yield from fields_of(SAMPLE_ID, tail, f"{name} sample_id")
    assert len(seen) >= 9


def values(old: bytes) -> set[bytes]:
    """0, all ones, the highest bit alone, and one more than it was."""
    bits = 8 * len(old)
    number = int.from_bytes(old, "little")
    wanted = {0, (1 << bits) - 1, 1 << bits - 1, number + 1}
    return {each.to_bytes(len(old), "little") for each in wanted if 0 <= each < 1 << bits} - {old}


@pytest.mark.parametrize("cpus", [0, 2])
def test_each_in_turn(cpus: int, program: ProgramBuilder, record: Recorder, tmp_path: Path) -> None:
    live = record([program("fork")])
    good, bad = tmp_path / "good", tmp_path / "bad"
    replay(live.log, good, event="intel_pt/psb_period=0/u", cpus=cpus, switches=Switches.WIDE)
    content = good.read_bytes()
    assert len(content) < 1 << 18
    fields = [*every_field(good)]
    assert {"header[0]", "MMAP2[2]", "AUXTRACE[0]", "COMM sample_id[2]"} <= {
        each.what for each in fields
    }
    decoded = refused = 0
    for each in fields:
        old = content[each.offset : each.offset + each.size]
        for value in values(old):
            bad.write_bytes(content[: each.offset] + value + content[each.offset + each.size :])
            try:
                with Trace(bad) as trace:
                    assert trace.mappings() is not None
                    assert trace.processes is not None
                    for stream in trace.streams:
                        stream.counts()
                        assert sum(span.end - span.start for span in stream.ledger()) == stream.size
                    with contextlib.suppress(RtitError):
                        assert len(trace.threads) >= len(trace.streams)
                decoded += 1
            except RtitError:
                refused += 1
    assert decoded > 100
    assert refused > 100


# What makes stock perf 6.1 crash, or refuse with a number.


@pytest.fixture
def made(program: ProgramBuilder, record: Recorder, tmp_path: Path) -> tuple[Path, int]:
    """A recording, and how many instructions it has."""
    live = record([program("returns")])
    path = tmp_path / "perf.data"
    replay(live.log, path)
    with Trace(path) as trace:
        return path, trace.streams[0].counts().instructions


def changed(path: Path, number: int, at: int, value: bytes) -> None:
    """Bytes behind the header of the first record of this type."""
    with PerfData(path) as data:
        place = next(each for each in data._scan.walk() if each.number == number)
    content = bytearray(path.read_bytes())
    start = place.offset + at
    content[start : start + len(value)] = value
    path.write_bytes(content)


def test_a_reference_of_0(made: tuple[Path, int]) -> None:
    path, instructions = made
    changed(path, perf.Auxtrace.layout.number, HEADER.size + 16, bytes(8))
    with Trace(path) as trace:
        assert trace.streams[0].counts().instructions == instructions


def test_no_tsc_in_a_psb(program: ProgramBuilder, record: Recorder, tmp_path: Path) -> None:
    """The attr says that there are TSC packets."""
    live = record([program("returns")])
    path = tmp_path / "perf.data"
    replay(live.log, path, event="intel_pt/tsc=0,mtc=0/u")
    with PerfData(path) as data:
        assert data.header.attrs is not None
        attr = data.header.attrs.offset
    content = bytearray(path.read_bytes())
    (config,) = struct.unpack_from("<Q", content, attr + 8)
    struct.pack_into("<Q", content, attr + 8, config | 1 << 10)
    path.write_bytes(content)
    with Trace(path) as trace:
        counts = trace.streams[0].counts()
        assert "TSC" not in counts.packets
        assert counts.instructions > 100
        assert all(span.kind == "exact" for span in trace.streams[0].ledger())


def test_a_time_mult_of_0(made: tuple[Path, int]) -> None:
    path, instructions = made
    # kind, reserved; pmu_type, time_shift, time_mult
    changed(path, perf.AuxtraceInfo.layout.number, HEADER.size + 8 + 16, bytes(8))
    with Trace(path) as trace:
        assert trace.clock is None
        assert trace.streams[0].counts().instructions == instructions


def test_no_auxtrace_info(made: tuple[Path, int]) -> None:
    path, _ = made
    changed(path, perf.AuxtraceInfo.layout.number, 0, struct.pack("<I", 78))
    with Trace(path) as trace, pytest.raises(RtitError, match="no Intel PT event"):
        trace.streams[0].counts()


@pytest.mark.parametrize("layout", ["records", "aux", "attrs"])
def test_ten_gigabytes_of_nothing(layout: str, made: tuple[Path, int]) -> None:
    """A sparse file whose sizes say that all of it is records, or one record, or attrs."""
    path, _ = made
    size = 10 << 30
    content = bytearray(path.read_bytes())
    words = list(FILE.unpack_from(content))
    if layout == "records":
        words[6] = size - words[5]
    elif layout == "attrs":
        words[4] = size - size % words[2]
    else:
        words[6] = size - words[5]
        with PerfData(path) as data:
            number = perf.Auxtrace.layout.number
            place = next(each for each in data._scan.walk() if each.number == number)
        struct.pack_into("<Q", content, place.offset + HEADER.size, size)
    FILE.pack_into(content, 0, *words)
    with path.open("wb") as file:
        file.write(content)
        file.truncate(size)
    with contextlib.suppress(RtitError), Trace(path) as trace:
        for stream in trace.streams:
            assert stream.size < 1 << 20
            stream.counts()
