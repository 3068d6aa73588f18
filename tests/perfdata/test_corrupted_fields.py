"""Each field of each record, attr and header, corrupted one at a time: the result is an
error of rtit or a partial result.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kernel import recording
from kernel.machine import Machine
from kernel.test_paths import run_kernel_code
from rtit.capture.ptrace.session import replay_events
from rtit.errors import RtitError
from rtit.packets import encode
from rtit.perfdata import PerfData, SwitchRecords, Writer
from rtit.perfdata import records as perf
from rtit.perfdata.attr import _ATTR
from rtit.perfdata.file_scan import FILE_HEADER
from rtit.perfdata.records import COMPRESSED_TYPES, RECORD_CLASSES, RECORD_HEADER, SAMPLE, Tail
from rtit.trace import Trace
from rtit.trace.recording.summary import summarize_recording
from support.limits import assert_peak_memory
from support.recording_variants import (
    SIDEBAND_ID,
    write_compressed_recording,
    write_sampled_recording,
)
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]
AUXTRACE_INFO_WORDS = 18
SAMPLE_ID = "iiQiiQ"
OWN_SHAPE = (64, 66, 70, 71)
"""HEADER_ATTR, TRACING_DATA, AUXTRACE_INFO, AUXTRACE: another one would change the meaning of the
file."""
WANTED = {
    "threads": {"MMAP2[2]", "COMM sample_id[2]"},
    "CPUs": {"SWITCH_CPU_WIDE[0]"},
    "kernel": {"KSYMBOL[0]", "TEXT_POKE[0]", "MMAP[2]"},
    "compressed": {"COMPRESSED_TYPES[2]"},
    "samples": {"SAMPLE body[5]", "ID_INDEX[0]"},
    "every kind": {
        "AUX[2]",
        "LOST[0]",
        "AUX_OUTPUT_HW_ID[0]",
        "TIME_CONV[1]",
        "HEADER_BUILD_ID[0]",
    },
}
"""Fields that a recording of each mode must have."""


class Field(NamedTuple):
    """`size` bytes at an offset of the file, and their name in messages."""

    what: str
    offset: int
    size: int


def fields_of(layout: str, at: int, what: str) -> Iterator[Field]:
    header = at
    for number, code in enumerate(expanded(layout)):
        size = struct.calcsize("<" + code)
        if not code.endswith("x"):
            yield Field(f"{what}[{number}]", header, size)
        header += size


def expanded(layout: str) -> Iterator[str]:
    """Yield one format code for each field."""
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
    """Yield the fields of the header, of each attr, and of the first record of each kind."""
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
        for header in data._scan.iterate_headers():
            seen[header.type] = seen.get(header.type, 0) + 1
            if seen[header.type] > 1:
                continue
            name = perf.TYPE_NAMES.get(header.type, str(header.type))
            yield from fields_of("IHH", header.offset, name)
            body = header.offset + RECORD_HEADER.size
            if header.type in RECORD_CLASSES:
                fixed = RECORD_CLASSES[header.type].layout.fixed
                yield from fields_of(fixed.format, body, name)
                body += fixed.size
            if header.type == perf.AuxtraceInfo.layout.number:
                yield from fields_of(f"{AUXTRACE_INFO_WORDS}Q", body, name)
            if header.type == SAMPLE:
                yield from fields_of("QQiiQQ", body, "SAMPLE body")
            if header.type in COMPRESSED_TYPES:
                # the frame's header, and that of its first block
                yield from fields_of("IBBHB", body, "COMPRESSED_TYPES body")
            tail = header.offset + header.size - struct.calcsize("<" + SAMPLE_ID)
            if header.type < perf.FIRST_USER_TYPE and tail >= body:
                yield from fields_of(SAMPLE_ID, tail, f"{name} sample_id")


def values(old: bytes) -> set[bytes]:
    """Return 0, all ones, the highest bit alone, and the old value plus one."""
    bits = 8 * len(old)
    number = int.from_bytes(old, "little")
    wanted = {0, (1 << bits) - 1, 1 << bits - 1, number + 1}
    return {each.to_bytes(len(old), "little") for each in wanted if 0 <= each < 1 << bits} - {old}


EVENT = "intel_pt/psb_period=0/u"


def write_layout(mode: str, program: ProgramBuilder, record: Recorder, folder: Path) -> Path:
    """Write a recording; compressed layouts as the directory without compression."""
    good = folder / "good"
    if mode == "every kind":
        return every_kind(good)
    if mode == "kernel":
        return recording.write(run_kernel_code(Machine()), good) / "data"
    log = record([program("fork" if mode != "samples" else "returns")]).log
    whole = folder / "whole"
    replay_events(
        log, whole, event=EVENT, cpus=2 if mode == "CPUs" else 0, switches=SwitchRecords.CPU_WIDE
    )
    if mode == "compressed":
        write_compressed_recording(whole, good)
    elif mode == "samples":
        with Trace(whole) as trace:
            size = trace.streams[0].size
        write_sampled_recording(whole, good, [(0, size // 2), (size // 3, size)])
    else:
        return whole
    return good


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["threads", "CPUs", "kernel", "compressed", "samples", "every kind"]
)
def test_corrupting_each_field_gives_result_or_error(
    mode: str, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    good = write_layout(mode, program, record, tmp_path)
    # beside the valid one, for a directory with copies of the kernel
    bad = good.with_name("data" if mode == "kernel" else "bad")
    content = good.read_bytes()
    assert len(content) < 1 << 18
    fields = [*every_field(good)]
    assert WANTED[mode] <= {each.what for each in fields}
    decoded = refused = 0
    with assert_peak_memory(64):
        for each in fields:
            old = content[each.offset : each.offset + each.size]
            for value in sorted(values(old)):
                overwrite_record = (
                    content[: each.offset] + value + content[each.offset + each.size :]
                )
                bad.write_bytes(overwrite_record)
                if decodes(bad.parent if mode == "kernel" else bad):
                    decoded += 1
                else:
                    refused += 1
    assert decoded > 50
    assert refused > 50


def every_kind(path: Path) -> Path:
    """Write a small recording with another record of each kind that has a layout."""
    out = Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3")
    out.comm(7, 7, 1, "it")
    out.auxtrace(7, 7, encode("PSB") + encode("PSBEND") + bytes(6), None, 100)
    out.flush()
    content = bytearray(path.read_bytes())
    start = len(content)
    for number, kind in sorted(RECORD_CLASSES.items()):
        if number in OWN_SHAPE:
            continue
        body = bytes(kind.layout.fixed.size) + (b"" if kind.layout.tail is Tail.NONE else bytes(8))
        body += bytes(-len(body) % 8)
        if number < perf.FIRST_USER_TYPE:
            body += struct.pack("<iiQQ", 7, 7, 5, SIDEBAND_ID)
        content += RECORD_HEADER.pack(number, 0, RECORD_HEADER.size + len(body)) + body
    words = list(FILE_HEADER.unpack_from(content))
    words[6] += len(content) - start
    FILE_HEADER.pack_into(content, 0, *words)
    path.write_bytes(content)
    return path


def decodes(path: Path) -> bool:
    """Return whether the file opens and decodes, at least in part; other files raise an error of
    rtit.
    """
    with contextlib.suppress(RtitError), Trace(path) as trace:
        summarize_recording(trace)
    try:
        with Trace(path) as trace:
            assert trace.mappings() is not None
            assert trace.processes is not None
            for stream in trace.streams:
                stream.counts()
                assert sum(span.end - span.start for span in stream.ledger()) == stream.size
            with contextlib.suppress(RtitError):
                assert len(trace.threads) >= len(trace.streams)
    except RtitError as error:
        sentence = str(error)
    else:
        return True
    assert len(sentence.splitlines()) == 1
    return False


# Values for which stock perf 6.1 crashes or fails with a bare number.


@pytest.fixture
def made(program: ProgramBuilder, record: Recorder, tmp_path: Path) -> tuple[Path, int]:
    """Return a recording, and its number of instructions."""
    live = record([program("returns")])
    path = tmp_path / "perf.data"
    replay_events(live.log, path)
    with Trace(path) as trace:
        return path, trace.streams[0].counts().instructions


def overwrite_record(path: Path, number: int, at: int, value: bytes) -> None:
    """Overwrite bytes at an offset in the first record of this type."""
    with PerfData(path) as data:
        header = next(each for each in data._scan.iterate_headers() if each.type == number)
    content = bytearray(path.read_bytes())
    start = header.offset + at
    content[start : start + len(value)] = value
    path.write_bytes(content)


def test_auxtrace_reference_0_is_handled(made: tuple[Path, int]) -> None:
    path, instructions = made
    overwrite_record(path, perf.Auxtrace.layout.number, RECORD_HEADER.size + 16, bytes(8))
    with Trace(path) as trace:
        assert trace.streams[0].counts().instructions == instructions


def test_psb_without_tsc_is_handled(
    program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    """The attr enables TSC packets."""
    live = record([program("returns")])
    path = tmp_path / "perf.data"
    replay_events(live.log, path, event="intel_pt/tsc=0,mtc=0/u")
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


def test_time_mult_0_has_no_conversion(made: tuple[Path, int]) -> None:
    path, instructions = made
    # kind, reserved; pmu_type, time_shift, time_mult
    overwrite_record(path, perf.AuxtraceInfo.layout.number, RECORD_HEADER.size + 8 + 16, bytes(8))
    with Trace(path) as trace:
        assert trace.clock is None
        assert trace.streams[0].counts().instructions == instructions


def test_invalid_mtc_period_is_handled(made: tuple[Path, int]) -> None:
    """The mask covers all of attr.config: a period with millions of digits."""
    path, _ = made
    overwrite_record(
        path, perf.AuxtraceInfo.layout.number, RECORD_HEADER.size + 8 + 11 * 8, b"\xff" * 8
    )
    with Trace(path) as trace:
        (time,) = [text for text in summarize_recording(trace).settings if text.startswith("time:")]
        assert "MTC of a period that no processor has" in time


def test_file_without_auxtrace_info_is_read(made: tuple[Path, int]) -> None:
    path, _ = made
    overwrite_record(path, perf.AuxtraceInfo.layout.number, 0, struct.pack("<I", 78))
    with Trace(path) as trace, pytest.raises(RtitError, match="no Intel PT event"):
        trace.streams[0].counts()


@pytest.mark.parametrize("layout", ["records", "aux", "attrs"])
def test_sparse_aux_data_uses_little_memory(layout: str, made: tuple[Path, int]) -> None:
    """A sparse file whose sizes claim that it is all records, one record, or attrs."""
    path, _ = made
    size = 10 << 30
    content = bytearray(path.read_bytes())
    words = list(FILE_HEADER.unpack_from(content))
    if layout == "records":
        words[6] = size - words[5]
    elif layout == "attrs":
        words[4] = size - size % words[2]
    else:
        words[6] = size - words[5]
        with PerfData(path) as data:
            number = perf.Auxtrace.layout.number
            header = next(each for each in data._scan.iterate_headers() if each.type == number)
        struct.pack_into("<Q", content, header.offset + RECORD_HEADER.size, size)
    FILE_HEADER.pack_into(content, 0, *words)
    with path.open("wb") as file:
        file.write(content)
        file.truncate(size)
    with assert_peak_memory(64), contextlib.suppress(RtitError), Trace(path) as trace:
        for stream in trace.streams:
            assert stream.size < 1 << 20
            stream.counts()
