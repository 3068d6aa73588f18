"""TSCs of several virtual machines convert to the host's, which the trace unit writes without
offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from rtit.cli.main import main
from rtit.errors import UsageError
from rtit.packets import encode
from rtit.perfdata import Writer
from rtit.scenario.parser import parse
from rtit.scenario.runner import run
from rtit.trace import MemorySource, Trace
from rtit.trace.recording.byte_source import ByteSource
from rtit.trace.time.guest_time import HostTimeSource, guest_offsets

NO_SCALING = 1 << 48
FIRST, SECOND = 0x5000, 0x6000
TSC_CTC = (80, 2)
"""CPUID.15H EBX and EAX of the model."""


def machines(first: str, second: str) -> bytes:
    """Run two machines alternately on a processor, twice, with their controls."""
    interval = """
vmptrld 0x1000 0x1003 {vmcs:#x}
vmcs {controls}
vm_entry 0x1003 0x2000
insert_psb
insert_psb
vm_exit 0x2004 0x1000
insert_psb"""
    intervals = [
        interval.format(vmcs=vmcs, controls=controls)
        for vmcs, controls in 2 * ((FIRST, first), (SECOND, second))
    ]
    text = f"""section 33.5.2.1
ctl OS BranchEn TSCEn MTCEn MTCFreq=0
arch cpl=0 vmx=root vmcs={FIRST:#x}
enable 0x1000
{"".join(intervals)}
"""
    return run(parse(text, "machines")).raw


PLAIN = machines("tsc_offset=0", "tsc_offset=0")
MOVED = machines("tsc_offset=-123456", "tsc_offset=987654321")
OFFSETS = {FIRST: -123456, SECOND: 987654321}
GUESTS = {vmcs: (offset % (1 << 64), NO_SCALING) for vmcs, offset in OFFSETS.items()}


class Cut:
    """Source whose chunks have the given sizes."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes = data, sizes
        self.size = len(data)

    def chunks(self) -> Iterator[memoryview]:
        at = 0
        for size in self._sizes:
            yield memoryview(self._data)[at : at + size]
            at += size
        yield memoryview(self._data)[at:]


def convert_stream(source: ByteSource, guests: dict[int, tuple[int, int]]) -> bytes:
    return b"".join(bytes(part) for part in HostTimeSource(source, guests).chunks())


@given(st.lists(st.integers(1, 70), max_size=30))
def test_chunk_sizes_do_not_change_converted_times(sizes: list[int]) -> None:
    assert PLAIN != MOVED
    assert convert_stream(Cut(MOVED, sizes), GUESTS) == PLAIN


def test_each_vmcs_has_its_own_offset() -> None:
    only = machines("tsc_offset=-123456", "tsc_offset=0")
    assert convert_stream(MemorySource(only), {FIRST: GUESTS[FIRST]}) == PLAIN
    assert convert_stream(MemorySource(only), {SECOND: GUESTS[FIRST]}) != PLAIN
    assert convert_stream(MemorySource(only), {}) == only


def test_multiplier_scales_guest_tsc() -> None:
    half = machines("tsc_offset=5 tsc_multiplier=0x800000000000", "tsc_offset=0")
    found = convert_stream(MemorySource(half), {FIRST: (5, NO_SCALING // 2)})
    # half a tick is lost
    assert len(found) == len(PLAIN)
    assert sum(a != b for a, b in zip(found, PLAIN, strict=True)) <= found.count(b"\x02\x82" * 8)


# 1000 nop; 1001 jmp rax
INDIRECT = rtit.Image().add(0x1000, b"\x90\xff\xe0")


def ip_packet(name: str) -> bytes:
    return encode(name, ip_bytes=6, payload=0x1000)


@pytest.mark.parametrize("multiplier", [NO_SCALING, 0])
def test_multiplier_0_leaves_guest_tsc_unscaled(multiplier: int) -> None:
    """The multiplier 0 means no scaling."""
    begin = encode("PSB") + encode("TSC", tsc=1000) + ip_packet("FUP") + encode("PSBEND")
    guest = encode("PIP", nr=1, cr3=0) + encode("TSC", tsc=3000 + 5)
    packets = begin + guest + ip_packet("TIP") * 2
    (stream,) = rtit.decode(packets, INDIRECT, guest_tsc=(5, multiplier)).streams
    assert stream.blocks().columns()["time"].tolist() == [1000, 3000]


def test_start_time_with_all_bits_set_is_accepted() -> None:
    most = (1 << 64) - 1
    begin = encode("PSB") + encode("TSC", tsc=(1 << 56) - 1) + ip_packet("FUP") + encode("PSBEND")
    packets = begin + ip_packet("TIP") * 2
    (stream,) = rtit.decode(packets, INDIRECT, start_time=most).streams
    assert stream.blocks().columns()["time"].tolist() == [most, most]


def test_tsc_outside_of_psb_is_converted() -> None:
    """The TSC is the guest's from the PIP on, whatever VMCS packet precedes it."""

    def stream(tsc: int) -> bytes:
        begin = encode("PSB") + encode("TSC", tsc=50) + encode("PSBEND")
        entry = encode("VMCS", pointer=SECOND) + encode("PIP", nr=1, cr3=0x7000)
        host = encode("PIP", nr=0, cr3=0x7000) + encode("TSC", tsc=900)
        return begin + encode("TSC", tsc=60) + entry + encode("TSC", tsc=tsc) + host

    assert convert_stream(MemorySource(stream(1070)), {SECOND: (1000, NO_SCALING)}) == stream(70)
    wrapped = convert_stream(MemorySource(stream(70)), {SECOND: (100, NO_SCALING)})
    assert wrapped == stream((1 << 56) - 30)


def test_guest_offset_is_computed_from_tma() -> None:
    """Host and guest share the crystal clock: exact to the tick here, with 40 TSC ticks a crystal
    tick.
    """
    found = guest_offsets(MemorySource(MOVED), TSC_CTC)
    assert found == {vmcs: offset % (1 << 56) for vmcs, offset in OFFSETS.items()}
    assert guest_offsets(MemorySource(PLAIN), TSC_CTC) == {FIRST: 0, SECOND: 0}
    assert guest_offsets(MemorySource(MOVED), (0, 0)) == {}


def write_recording(path: Path, packets: bytes) -> Path:
    with Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3", tsc_ctc=TSC_CTC) as out:
        out.auxtrace(-1, -1, packets, None, 1_000_000_000, cpu=0)
    return path


def times(path: Path, guest_tsc: object) -> list[int]:
    with Trace(path, guest_tsc=guest_tsc) as trace:  # type: ignore[arg-type]
        (stream,) = trace.streams
        found: list[int] = stream.packets(timing=True).columns()["time"].tolist()
        return found


def test_recording_with_guest_tsc_has_host_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, moved = (
        write_recording(tmp_path / name, data)
        for name, data in (("plain", PLAIN), ("moved", MOVED))
    )
    truth = times(plain, (0, NO_SCALING))
    assert times(moved, GUESTS) == truth
    assert times(moved, "auto") == truth
    assert times(moved, (0, NO_SCALING)) != truth
    assert main(["events", str(plain)]) in (0, 3)
    shown = capsys.readouterr().out
    options = [f"--guest-tsc={vmcs:#x}:{offset}" for vmcs, offset in OFFSETS.items()]
    for each in (options, ["--guest-tsc", "auto"]):
        assert main(["events", *each, str(moved)]) in (0, 3)
        assert capsys.readouterr().out == shown
    assert main(["events", str(moved)]) in (0, 3)
    assert capsys.readouterr().out != shown
    assert main(["info", *options, str(moved)]) in (0, 3)


def test_invalid_guest_tsc_raises_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_recording(tmp_path / "perf.data", PLAIN)
    wrong: tuple[Any, ...] = (
        {FIRST: (0, 0)},
        {-1: (0, 1)},
        {FIRST: (1 << 64, 1)},
        {FIRST: 5},
        {"0x1000": (0, 1)},
        "of none",
    )
    for each in wrong:
        with pytest.raises(UsageError, match="guest_tsc"):
            Trace(data, guest_tsc=each)
    twice = ["--guest-tsc", "5", "--guest-tsc", "6"]
    for options in (
        twice,
        ["--guest-tsc", "x:5"],
        ["--guest-tsc", "5:"],
        ["--guest-tsc", "0x5:0,0"],
        ["--guest-tsc", "0x10:5", "--guest-tsc", "16:5"],
    ):
        assert main(["events", *options, str(data)]) == 2
        assert capsys.readouterr().err.count("\n") == 2  # with the usage


def test_stream_that_starts_in_guest_is_converted() -> None:
    """Within PSB+, PIP and VMCS follow the TSC (section 33.3.7)."""

    def stream(tsc: int) -> bytes:
        identity = encode("PIP", nr=1, cr3=0x7000) + encode("VMCS", pointer=SECOND)
        return encode("PSB") + encode("TSC", tsc=tsc) + identity + encode("PSBEND")

    assert convert_stream(MemorySource(stream(1070)), {SECOND: (1000, NO_SCALING)}) == stream(70)


def test_computed_offsets_equal_true_offsets() -> None:
    """TSC less FastCounter is the TSC at which the crystal clock was CTC (section 33.4.2.13)."""

    def clocks(tsc: int, ctc: int, fast_counter: int) -> bytes:
        return encode("TSC", tsc=tsc) + encode("TMA", ctc=ctc, fast_counter=fast_counter)

    # 20 crystal ticks of 40 after 997, over the wrap of CTC, and 7 more: 1804
    stream = encode("PSB") + clocks(1000, 0xFFF0, 3) + encode("PSBEND")
    stream += encode("VMCS", pointer=SECOND) + encode("PIP", nr=1, cr3=0x7000)
    stream += clocks(1804 + 5000, 4, 7) + encode("PIP", nr=0, cr3=0x7000)
    assert guest_offsets(MemorySource(stream + clocks(3000, 0x22, 0)), TSC_CTC) == {SECOND: 5000}
    # after a full wrap of CTC the clock is ambiguous
    later = clocks(1000 + (40 << 16), 0xFFF0, 3)
    assert guest_offsets(MemorySource(stream + later), TSC_CTC) == {}
    assert guest_offsets(MemorySource(stream), TSC_CTC) == {}


def offset_samples(offsets: list[int], vmcs: int = SECOND) -> bytes:
    """Encode packets of a guest with these offsets, between times of the host."""

    def clocks(tsc: int, ctc: int) -> bytes:
        return encode("TSC", tsc=tsc) + encode("TMA", ctc=ctc, fast_counter=0)

    stream = encode("VMCS", pointer=vmcs)
    for number, offset in enumerate(offsets):
        host = 40_000 * (number + 1)
        stream += encode("PIP", nr=0, cr3=0x7000) + clocks(host, 1000 * (number + 1) % 65536)
        stream += encode("PIP", nr=1, cr3=0x7000)
        stream += clocks(host + 40 + offset, (1000 * (number + 1) + 1) % 65536)
    after = len(offsets) + 1
    stream += encode("PIP", nr=0, cr3=0x7000) + clocks(40_000 * after, 1000 * after % 65536)
    return encode("PSB") + encode("PSBEND") + stream


@pytest.mark.parametrize(
    ("offsets", "found"),
    [
        ([500, 900, 500], 500),
        # rounding: adjacent offsets count together; the most frequent one wins, then the smallest
        ([500, 501, 502, 501, 900, 901, 900], 501),
        ([502, 501, 900], 501),
        # no majority: no offset
        ([500, 900], None),
        ([500, 600, 700, 500], None),
        # the first 512 count
        ([500] * 300 + [900] * 700, 500),
        ([500] * 200 + [900] * 500, 900),
    ],
)
def test_majority_offset_needs_over_half_of_samples(offsets: list[int], found: int | None) -> None:
    computed = guest_offsets(MemorySource(offset_samples(offsets)), TSC_CTC)
    assert computed == ({} if found is None else {SECOND: found})


def test_number_of_guests_is_limited() -> None:
    stream = b"".join(offset_samples([500], 0x1000 * (number + 1)) for number in range(1030))
    assert list(guest_offsets(MemorySource(stream), TSC_CTC)) == [
        0x1000 * n for n in range(1, 1025)
    ]
