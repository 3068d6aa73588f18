"""Readers of bytes in Python: a reader returns for every input, or raises RtitError.

`READERS` has them by name. Each takes the input and a folder for its files.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from rtit.capture.events import EventKind, EventLog, parse_mmap
from rtit.errors import InputError, PacketError, PerfDataError, RtitError, UnsupportedError
from rtit.packets import BadBytes, describe, find_psb, iterate_packets, reencode, scan, to_json
from rtit.perfdata import PerfData

Reader = Callable[[bytes, Path], None]


class WrongError(Exception):
    """A reader returned an impossible result."""


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise WrongError(what)


def _native() -> ModuleType | None:
    try:
        return importlib.import_module("rtit._core")
    except ImportError:
        return None


def read_packets(data: bytes, folder: Path) -> None:
    """Items must be adjacent; the native scanner, if it is built, finds the same ones."""
    at = 0
    items = []
    for item in scan(data):
        _require(item.offset == at, f"an item at {item.offset:#x}, not at {at:#x}")
        if isinstance(item, BadBytes):
            at += item.length
            following = None if item.truncated else find_psb(data, item.offset + 1)
            _require(at == (len(data) if following is None else following), "not to the next PSB")
        else:
            at += item.size
            _require(item.raw == data[item.offset : at], "other bytes than the packet's")
            _require(reencode(item) == item.raw, f"{describe(item)} gives other bytes")
            _require(bool(to_json(item)), "no JSON")
            items.append((item.offset, item.size, item.name, dict(item.fields)))
    _require(at == len(data), f"the items end at {at:#x} of {len(data):#x}")
    native = _native()
    if native is not None:
        _require(_scan_natively(data) == items, "the native scanner reads other packets")
        _scan_in_pieces(native, data, [name for _, _, name, _ in items])
    try:
        for _ in iterate_packets(data):
            pass
    except PacketError as error:
        _require(error.offset is not None and error.value is not None, "an error without place")


def _scan_natively(data: bytes) -> list[tuple[int, int, str, object]]:
    from rtit.trace.tables.packets import packet_batches

    return [
        (row.offset, int(size), row.name, row.fields)
        for batch in packet_batches(data)
        for row, size in zip(batch, batch.size(), strict=True)
    ]


def _scan_in_pieces(native: ModuleType, data: bytes, names: list[str]) -> None:
    """Check that columns and times do not depend on the size of pieces."""
    from rtit.trace.tables.packets import PACKET_KINDS

    clocks = {"mtc_freq": 3, "tsc_ctc": (80, 2), "max_nonturbo_ratio": 10}
    size = 1 + sum(data[:3]) % 40
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    errata = {"errata": ["SKD007", "SKZ84"], "with_bytes": True}
    timed = {"clocks": clocks, "timing_samples": True}
    for more in ({"with_bytes": True}, errata, {"clocks": clocks}, timed):
        whole, parted = (_columns(native.PacketScan(of, **more), 1 << 20) for of in (data, pieces))
        _require(whole == parted, f"other packets in pieces of {size}, with {list(more)}")
        if more is not errata:
            _require(
                [PACKET_KINDS[int(kind)] for kind in whole[0]] == names, "other packets in columns"
            )


def _columns(scan: Any, limit: int) -> list[list[Any]]:
    """Return columns of packets, bad bytes, bytes of packets, times, and timing samples."""
    found: list[list[Any]] = [[] for _ in range(9)]
    while (batch := scan.next(limit)) is not None:
        columns = (batch[name] for name in ("kind", "detail", "offset", "payload"))
        bad, raw, times = batch["bad"], batch["raw"], batch["times"]
        # as text: an unknown frequency (NaN) is not equal to itself
        for at, more in enumerate((*columns, [bad] if bad else [], raw or b"", *(times or ()))):
            found[at] += map(repr, more)
    return [*found, *(list(map(repr, each)) for each in scan.timing_samples().values())]


def read_events(data: bytes, folder: Path) -> None:
    """A readable log must be equal after it was written again."""
    path = folder / "events"
    path.write_bytes(data)
    log = EventLog.load(path)
    again = folder / "again"
    log.save(again)
    _require(again.read_bytes() == data, "the log writes other bytes than it read")
    for event in log.events():
        if event.kind == EventKind.MMAP:
            with suppress(InputError):
                parse_mmap(event.blob)


def read_perf_data(data: bytes, folder: Path) -> None:
    """Read all metadata of a file, its records and its AUX data."""
    path = folder / "perf.data"
    path.write_bytes(data)
    with PerfData(path) as file:
        for part in file.records_by_file():
            for record in part:
                repr(record)
        for pieces in file.auxtrace_buffers().values():
            for piece in pieces:
                end = piece.file_offset + len(piece.data)
                _require(end <= len(data), "AUX data outside of the file")
        for number in file.features:
            file.feature(number)
        for name in _FACTS:
            with suppress(PerfDataError, UnsupportedError):
                repr(getattr(file, name))


_FACTS = (
    *("incomplete", "info", "events", "intel_pt", "time_conversion", "hostname", "release"),
    *("version", "arch", "cpuid", "cpu_description", "facts", "command_line", "pmus", "build_ids"),
)


def read_trace(data: bytes, folder: Path) -> None:
    """Read a whole recording: its images, and the ledger of every stream."""
    from rtit.trace import Trace

    path = folder / "perf.data"
    path.write_bytes(data)
    with Trace(path, symfs=folder / "no files") as trace:
        for stream in trace.streams:
            _require(bool(stream.title), "no title")
            try:
                spans = stream.ledger()
            except RtitError:
                continue
            at = 0
            for span in spans:
                _require(span.start == at, "a gap in the ledger")
                at = span.end
            _require(at == len(stream.read()), "the ledger is not complete")


READERS: dict[str, Reader] = {
    "packets": read_packets,
    "events": read_events,
    "perfdata": read_perf_data,
    "trace": read_trace,
}
