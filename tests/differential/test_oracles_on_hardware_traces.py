"""The oracles decode hardware recordings with known instructions."""

from __future__ import annotations

from pathlib import Path

import pytest

from differential.oracles import libipt, perf, raw

HOME = "/home/joerg/git"
# recording, ELF file, its recorded path, CPU
RECORDINGS = [
    ("loopy-skylake", "loopy", f"{HOME}/angr/hase/tests/bin/loopy/loopy", (6, 94, 3)),
    (
        "control_flow-skylake",
        "control_flow",
        f"{HOME}/angr/hase/tests/bin/control_flow/control_flow",
        (6, 94, 3),
    ),
    ("loopy-broadwell-snapshot", "loopy", f"{HOME}/hase/tests/bin/loopy/loopy", (6, 61, 4)),
]


@pytest.fixture
def _needs_libipt() -> None:
    """Skip the test if libipt is missing."""
    try:
        libipt.harness()
    except libipt.LibiptMissingError as error:
        pytest.skip(str(error))


def known_ips(traces: Path, name: str) -> list[int]:
    text = (traces / "hase" / f"{name}.ips.txt").read_text()
    return [int(line, 16) for line in text.split()]


@pytest.mark.usefixtures("_needs_libipt")
@pytest.mark.parametrize(("name", "elf", "recorded", "cpu"), RECORDINGS)
def test_libipt_decodes_known_instructions(
    traces: Path, name: str, elf: str, recorded: str, cpu: tuple[int, int, int]
) -> None:
    (trace,) = raw.auxtrace(traces / "hase" / f"{name}.perf.data")
    sections = raw.code_sections(traces / "hase" / f"{elf}.elf")
    decoded = libipt.decode(trace.data, sections, cpu)
    assert decoded.ips == known_ips(traces, name)
    assert decoded.errors == []
    blocks = [
        item for item in libipt.blocks(trace.data, sections, cpu) if item.kind == libipt.BLOCK
    ]
    assert sum(block.detail for block in blocks) == len(decoded.ips)


@pytest.mark.parametrize(("name", "elf", "recorded", "cpu"), RECORDINGS)
def test_perf_decodes_known_instructions(
    traces: Path, name: str, elf: str, recorded: str, cpu: tuple[int, int, int]
) -> None:
    recording = traces / "hase" / f"{name}.perf.data"
    (trace,) = raw.auxtrace(recording)
    try:
        ips, errors = perf.instructions(recording, {recorded: traces / "hase" / f"{elf}.elf"})
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    assert list(ips.values()) == [known_ips(traces, name)]
    assert errors == []
    assert b"".join(packet.data for packet in perf.packets(recording)) == trace.data


def test_perf_reports_missing_code(traces: Path) -> None:
    try:
        found = perf.errors(traces / "hase" / "loopy-skylake.perf.data", {})
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    assert [(error.ip, error.code) for error in found] == [(0x4000E8, 5)]


@pytest.mark.usefixtures("_needs_libipt")
def test_libipt_decodes_dynamorio_trace_with_times(traces: Path) -> None:
    trace = (traces / "dynamorio" / "pt.bin").read_bytes()
    hello = traces / "dynamorio" / "hello"
    timing = libipt.Timing(mtc_freq=3, nom_freq=37, eax=2, ebx=308)
    decoded = libipt.decode(trace, raw.code_sections(hello), (6, 85, 4), timing)
    entry = 0x401000
    assert decoded.ips == [entry + offset for offset in (0, 5, 10, 20, 25, 27, 32, 37)]
    assert decoded.times == sorted(decoded.times)
    assert decoded.times[0] > 0
    assert decoded.errors == []
    packets = libipt.packets(trace)
    kinds = [name for _, name, _ in packets]
    assert (kinds.count("cyc"), kinds.count("mtc"), kinds.count("psb")) == (545, 538, 1)
    assert sum(size for _, _, size in packets) == len(trace)


@pytest.mark.usefixtures("_needs_libipt")
def test_measure_counts_what_decode_finds(traces: Path) -> None:
    sections = raw.code_sections(traces / "dynamorio" / "hello")
    trace = traces / "dynamorio" / "pt.bin"
    for what in ("blocks", "instructions"):
        rows = libipt.measure(trace, sections, 2, what=what)
        assert [(row.instructions, row.errors) for row in rows] == [(8, 0), (8, 0)]
    (row,) = libipt.measure(trace, sections, 1, what="packets")
    assert row.items == len(libipt.packets(trace.read_bytes()))


@pytest.mark.usefixtures("_needs_libipt")
def test_libipt_reports_missing_code(traces: Path) -> None:
    (trace,) = raw.auxtrace(traces / "hase" / "loopy-skylake.perf.data")
    decoded = libipt.decode(trace.data, [], (6, 94, 3))
    assert decoded.ips == []
    assert [(name, ip) for name, _, ip in decoded.errors] == [("nomap", 0x4000E8)]
