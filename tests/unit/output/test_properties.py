"""The memory image is the byte stream in the layout of the tables, for any sizes of writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.registers import CTL, FULL, RegisterFile
from rtit.unit.memory import Memory
from rtit.unit.output import ACCEPTED, Output, OutputResult, TopaEntry, write_topa_table

TOPA = CTL.encode(TraceEn=1, ToPA=1)
FOLLOW = st.sampled_from(["eager", "lazy"])
CUTS = st.lists(st.one_of(st.integers(0, 16), st.integers(0, 9000)), max_size=12)


@dataclass
class Layout:
    """Tables at multiples of 1 MB, and regions above 16 MB, in the order of use."""

    tables: list[tuple[int, list[TopaEntry]]]

    @property
    def regions(self) -> list[TopaEntry]:
        return [entry for _, table in self.tables for entry in table if not entry.end]

    def install(self, memory: Memory) -> None:
        for base, table in self.tables:
            write_topa_table(memory, base, table)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Draw one to three tables in a circle, with regions of 4 to 16 KB, some with INT or STOP."""
    count = draw(st.integers(1, 3))
    bases = draw(st.permutations([n << 20 for n in range(1, count + 1)]))
    where = draw(st.permutations(range(12)))
    number = 0
    tables = []
    for n, base in enumerate(bases):
        table = []
        for _ in range(draw(st.integers(1, 3))):
            size = 4096 << draw(st.integers(0, 2))
            flags = {"interrupt": draw(st.booleans()), "stop": draw(st.integers(0, 9)) == 0}
            table.append(TopaEntry((1 << 24) + (where[number] << 16), size, **flags))
            number += 1
        table.append(TopaEntry(bases[(n + 1) % count], end=True))
        tables.append((base, table))
    return Layout(tables)


def pieces(cuts: list[int]) -> list[bytes]:
    """Return data of the given sizes; adjacent bytes differ."""
    total = sum(cuts)
    data = bytes(n % 255 + 1 for n in range(total))
    out = []
    at = 0
    for size in cuts:
        out.append(data[at : at + size])
        at += size
    return out


@given(layout=layouts(), cuts=CUTS, follow=FOLLOW)
@pytest.mark.spec("TOPA-002", "TOPA-006")
def test_memory_contains_the_stream_in_region_order(
    layout: Layout, cuts: list[int], follow: Literal["eager", "lazy"]
) -> None:
    memory = Memory()
    layout.install(memory)
    output = Output(memory, profile=FULL, follow=follow)
    assert output.enable(RegisterFile(ctl=TOPA, output_base=layout.tables[0][0])) is ACCEPTED
    accepted = b""
    pmi = stopped = False
    for piece in pieces(cuts):
        result = output.write(piece)
        assert result.error is None
        accepted += piece[: len(piece) - result.lost]
        assert result.stopped or not result.lost
        stopped |= result.stopped
        pmi |= result.pmi

    # The model: the circle of regions, repeated; the last write to each address remains.
    image: dict[int, bytes] = {}
    left = accepted
    expected_pmi = expected_stop = False
    number = 0
    regions = layout.regions
    while left:
        region = regions[number % len(regions)]
        part, left = left[: region.size], left[region.size :]
        image[region.base] = part + image.get(region.base, b"")[len(part) :]
        if len(part) == region.size:
            number += 1
            expected_pmi |= region.interrupt
            expected_stop |= region.stop
            assert not (region.stop and left)
    for base, content in image.items():
        assert memory.read(base, len(content)) == content
    assert (pmi, stopped) == (expected_pmi, expected_stop)
    assert stopped or accepted == b"".join(pieces(cuts))


@given(layout=layouts(), cuts=CUTS, other=CUTS, follow=FOLLOW)
def test_split_writes_give_the_same_memory(
    layout: Layout, cuts: list[int], other: list[int], follow: Literal["eager", "lazy"]
) -> None:
    def run(pieces_: list[bytes]) -> tuple[object, ...]:
        memory = Memory()
        layout.install(memory)
        output = Output(memory, profile=FULL, follow=follow)
        output.enable(RegisterFile(ctl=TOPA, output_base=layout.tables[0][0]))
        results = [output.write(piece) for piece in pieces_]
        events = (any(r.stopped for r in results), any(r.pmi for r in results))
        return memory.snapshot(), output.snapshot(), output.msrs(), events

    whole = b"".join(pieces(cuts))
    again = []
    at = 0
    for size in other:
        again.append(whole[at : at + size])
        at += size
    again.append(whole[at:])
    assert run(pieces(cuts)) == run(again) == run([whole])


@given(layout=layouts(), cuts=CUTS, follow=FOLLOW, at=st.integers(0, 12))
def test_disable_and_enable_lose_no_bytes(
    layout: Layout, cuts: list[int], follow: Literal["eager", "lazy"], at: int
) -> None:
    layout = Layout(
        [
            (base, [TopaEntry(e.base, e.size, e.end, e.interrupt) for e in table])
            for base, table in layout.tables
        ]
    )
    images = []
    for pause in (False, True):
        memory = Memory()
        layout.install(memory)
        output = Output(memory, profile=FULL, follow=follow)
        assert output.enable(RegisterFile(ctl=TOPA, output_base=layout.tables[0][0])) is ACCEPTED
        for n, piece in enumerate(pieces(cuts)):
            if pause and n == at:
                output.disable()
                assert output.enable(RegisterFile(TOPA, 0, *output.msrs())) is ACCEPTED
            output.write(piece)
        images.append((memory.snapshot(), output.msrs()))
    assert images[0] == images[1]


@given(layout=layouts(), cuts=CUTS, more=CUTS, observed=st.booleans())
def test_restored_snapshot_continues_identically(
    layout: Layout, cuts: list[int], more: list[int], observed: bool
) -> None:
    memory = Memory(observer=(lambda at, data: None) if observed else None)
    layout.install(memory)
    output = Output(memory, profile=FULL)
    output.enable(RegisterFile(ctl=TOPA, output_base=layout.tables[0][0]))
    for piece in pieces(cuts):
        output.write(piece)
    saved = output.snapshot()
    first: list[OutputResult] = [output.write(piece) for piece in pieces(more)]
    end = (output.snapshot(), memory.snapshot())
    output.restore(saved)
    assert [output.write(piece) for piece in pieces(more)] == first
    assert (output.snapshot(), memory.snapshot()) == end


@given(bits=st.integers(7, 13), block=st.integers(0, 100), start=st.integers(0, 1 << 13), cuts=CUTS)
@pytest.mark.spec("OSR-002", "OSR-003")
def test_single_range_is_the_stream_modulo_its_size(
    bits: int, block: int, start: int, cuts: list[int]
) -> None:
    size = 1 << bits
    base = block * size
    start %= size
    memory = Memory()
    output = Output(memory, profile=FULL)
    pointers = start << 32 | (size - 1)
    assert output.enable(RegisterFile(1, 0, base, pointers)) is ACCEPTED
    expected = bytearray(size)
    position = start
    for piece in pieces(cuts):
        assert output.write(piece) is ACCEPTED
        for byte in piece:
            expected[position % size] = byte
            position += 1
    assert memory.read(base, size) == expected
    assert output.msrs() == (base, position % size << 32 | (size - 1))
