"""Traces of real processors decode to the paths that libipt and Linux perf agree on."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

core = pytest.importorskip("rtit._core", reason="the native module is not built")

AUXTRACE = 71


def aux_streams(data: bytes) -> Iterator[bytes]:
    """Yield the AUXTRACE payloads of a perf.data file, one for each buffer."""
    offset, size = struct.unpack_from("<QQ", data, 40)
    end = offset + size
    streams: dict[int, bytes] = {}
    while offset < end:
        kind, _, length = struct.unpack_from("<IHH", data, offset)
        if kind == AUXTRACE:
            payload, _, _, index = struct.unpack_from("<QQQI", data, offset + 8)
            start = offset + length
            streams[index] = streams.get(index, b"") + data[start : start + payload]
            offset += payload
        offset += length
    yield from streams.values()


def space_of(elf: bytes) -> Any:
    """Return a space with a static ELF at its link addresses."""
    space = core.Space()
    table, entry, number = (*struct.unpack_from("<Q", elf, 32), *struct.unpack_from("<HH", elf, 54))
    for index in range(number):
        at = table + index * entry
        kind, flags, offset, address, _, size = struct.unpack_from("<IIQQQQ", elf, at)
        if kind == 1 and flags & 1:
            space.map(0, address, elf[offset : offset + size])
    return space


def all_ips(flow: Any) -> list[int]:
    ips = array("Q")
    while (part := flow.instructions(64)) is not None:
        ips.extend(part["ip"])
    return list(ips)


@pytest.mark.spec("DEC-002", "PSB-011", "PSB-016", "TNT-011")
@pytest.mark.parametrize(
    ("trace", "elf"),
    [
        ("loopy-skylake", "loopy.elf"),
        ("control_flow-skylake", "control_flow.elf"),
        ("loopy-broadwell-snapshot", "loopy.elf"),
    ],
)
def test_traces_recorded_by_perf_decode_to_the_published_path(
    trace: str, elf: str, traces: Path
) -> None:
    folder = traces / "hase"
    space = space_of((folder / elf).read_bytes())
    expected = [int(line, 16) for line in (folder / f"{trace}.ips.txt").read_text().split()]
    ips = []
    for stream in aux_streams((folder / f"{trace}.perf.data").read_bytes()):
        flow = core.StreamDecoder(stream, space, mtc_freq=3)
        ips += all_ips(flow)
        lost = [row for row in flow.ledger() if row[2] == "lost" and row[3] != "incomplete"]
        assert lost == []
    assert ips == expected


@pytest.mark.spec("DEC-016")
def test_hardware_trace_with_cyc_and_mtc_decodes_to_the_known_path(traces: Path) -> None:
    folder = traces / "dynamorio"
    stream = (folder / "pt.bin").read_bytes()
    space = space_of((folder / "hello").read_bytes())
    settings = {"mtc_freq": 3, "tsc_ctc": (308, 2), "max_nonturbo_ratio": 37}
    entry = 0x401000
    expected = [entry + offset for offset in (0, 5, 10, 20, 25, 27, 32, 37)]
    flow = core.StreamDecoder(stream, space, **settings)
    assert all_ips(flow) == expected
    assert {row[2] for row in flow.ledger()} == {"exact"}

    flow = core.StreamDecoder(stream, space, **settings)
    times = array("Q")
    while (rows := flow.rows(1)) is not None:
        times.extend(rows["time"])
    # the first TSC packet is the lower bound of all; a microsecond holds some thousand ticks
    first = int.from_bytes(stream[stream.index(b"\x19") + 1 :][:7], "little")
    assert list(times) == sorted(times)
    assert all(first <= time < first + 10_000_000 for time in times)
