"""Ranges of a recording's address filters, and decoding with them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.image.mappings import Mapping
from rtit.packets import encode
from rtit.perfdata import Writer
from rtit.trace import Trace
from rtit.trace.recording.decoder_settings import traced_ranges

# 0 nop; 1 jmp 40; 40 nop; 41 jmp rax
CODE = bytes.fromhex("90 eb3d") + b"\x90" * 0x3D + bytes.fromhex("90 ffe0")
BASE = 0x40_0000
STREAM = (
    encode("PSB")
    + b"\x99\x01"
    + encode("FUP", ip_bytes=6, payload=BASE)
    + encode("PSBEND")
    + encode("TIP.PGD", ip_bytes=0)
)
A = "/a/program"


def mapping(start: int, size: int, offset: int, path: str) -> Mapping:
    return Mapping(start, start + size, offset, path, None, 0)


MAPPED = [
    mapping(0x10000, 0x1000, 0x1000, A),
    mapping(0x11000, 0x1000, 0x2000, A),
    mapping(0x70000, 0x1000, 0, "/b"),
    mapping(0x90000, 0x1000, 0x1000, A),  # after an exec
]


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        (None, ()),
        ("", ()),
        ("filter 0x1010/0x20@/a/program", ((0x10010, 0x1002F), (0x90010, 0x9002F))),
        # two adjacent mappings, and only one of them mapped again
        ("filter 0x1f00/0x200@/a/program", ((0x10F00, 0x110FF), (0x90F00, 0x90FFF))),
        ("filter 0x0/0x10@/b,filter 0x8/0x10@/b", ((0x70000, 0x70017),)),
        # a TraceStop range lets nothing through
        ("filter 0x0/0x10@/b,stop 0x1000/0x10@/a/program", ((0x70000, 0x7000F),)),
        ("stop 0x1000/0x10@/a/program", ()),
        ("filter 0xffffffff81000000/0x100", ((0xFFFFFFFF81000000, 0xFFFFFFFF810000FF),)),
        # unknown: never mapped, invalid filter text, more mappings than ranges
        ("filter 0x0/0x10@/b,filter 0x0/0x10@/c", ()),
        ("filter 0x5000/0x10@/b", ()),
        ("filter main@/b", ()),
        (",".join(f"filter {16 * at:#x}/0x8@/b" for at in range(5)), ()),
    ],
)
def test_traced_ranges_follow_mappings_of_filter_files(
    text: str | None, ranges: tuple[tuple[int, int], ...]
) -> None:
    assert traced_ranges(text, MAPPED) == ranges


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), min_size=1, max_size=4))
def test_traced_ranges_contain_filter_addresses(filters: list[tuple[int, int]]) -> None:
    text = ",".join(f"filter {offset:#x}/{size:#x}@/b" for offset, size in filters)
    ranges = traced_ranges(text, MAPPED)
    inside = {0x70000 + at for offset, size in filters for at in range(offset, offset + size)}
    assert {at for first, last in ranges for at in range(first, last + 1)} == inside
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(ranges))


@pytest.mark.parametrize(
    ("text", "ips"),
    [
        (None, [0, 1, 0x40, 0x41]),
        ("filter 0x0/0x40@{}", [0, 1]),
        ("filter 0x0/0x41@{}", [0, 1, 0x40, 0x41]),
    ],
)
def test_branch_out_of_the_filter_of_a_recording_decodes(
    text: str | None, ips: list[int], tmp_path: Path
) -> None:
    """Erratum SKL014: its TIP.PGD may lack the IP, so the filter must be known."""
    program = tmp_path / "program"
    program.write_bytes(CODE)
    with Writer(
        tmp_path / "perf.data",
        config=0x2601,
        cpuid="GenuineIntel,6,94,3",
        filter=text and text.format(program),
    ) as out:
        out.comm(7, 7, 1, "name", by_exec=True)
        out.mmap2(7, 7, 1, BASE, 0x1000, 0, 5, 2, 8, 1, 1, 0, str(program))
        out.auxtrace(7, 7, STREAM, None, 1)
    with Trace(tmp_path / "perf.data") as trace:
        (stream,) = trace.streams
        found = [ip - BASE for batch in stream.instructions() for ip in batch.ip.tolist()]
    assert found == ips
