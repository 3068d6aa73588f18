"""Output through Tables of Physical Addresses (section 33.2.7.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from rtit.registers import BROADWELL, CTL, FULL, Profile, RegisterFile
from rtit.unit.memory import Memory
from rtit.unit.output import (
    ACCEPTED,
    Output,
    OutputResult,
    OutputScheme,
    TopaEntry,
    write_topa_table,
)

TOPA = CTL.encode(TraceEn=1, ToPA=1)
TABLE, OTHER = 0x1000, 0x3000
A, B, C = 0x10000, 0x20000, 0x40000
K = 1024


def start(
    entries: list[TopaEntry | int],
    *,
    index: int = 0,
    offset: int = 0,
    profile: Profile = FULL,
    follow: Literal["eager", "lazy"] = "eager",
) -> tuple[Output, Memory]:
    memory = Memory()
    write_topa_table(memory, TABLE, entries)
    output = Output(memory, profile=profile, follow=follow)
    assert output.enable(registers(index, offset)) is ACCEPTED
    return output, memory


def registers(index: int = 0, offset: int = 0, base: int = TABLE) -> RegisterFile:
    return RegisterFile(
        ctl=TOPA, output_base=base, output_mask_ptrs=offset << 32 | index << 7 | 0x7F
    )


def pointers(output: Output) -> tuple[int, int, int]:
    """Return (table base, entry index, output offset) of the MSRs."""
    base, value = output.msrs()
    assert value & 0x7F == 0x7F
    return base, value >> 7 & 0x1FF_FFFF, value >> 32


def stream(size: int) -> bytes:
    return bytes(n * 7 % 251 + 1 for n in range(size))


@pytest.mark.spec("TOPA-001", "MSRCTL-011")
@pytest.mark.parametrize(
    ("fields", "scheme"),
    [
        ({"ToPA": 1}, OutputScheme.TOPA),
        ({"ToPA": 0}, OutputScheme.SINGLE_RANGE),
        ({"ToPA": 1, "FabricEn": 1}, OutputScheme.FABRIC),
        ({"ToPA": 0, "FabricEn": 1}, OutputScheme.FABRIC),
    ],
)
def test_ctl_selects_the_output_scheme(fields: dict[str, int], scheme: OutputScheme) -> None:
    """TABLE is a table in one scheme and the range itself in another."""
    stores: list[tuple[int, bytes]] = []
    fabric = bytearray()
    memory = Memory()
    write_topa_table(memory, TABLE, [TopaEntry(A)])
    memory.observer = lambda at, data: stores.append((at, data))
    output = Output(memory, profile=FULL, fabric=fabric.extend)
    values = registers()
    values.ctl = CTL.encode(TraceEn=1, **fields)
    assert output.enable(values) is ACCEPTED
    assert output.state.scheme == scheme
    assert output.write(b"abc") is ACCEPTED
    expected_stores = {
        OutputScheme.TOPA: [(A, b"abc")],
        OutputScheme.SINGLE_RANGE: [(TABLE, b"abc")],
    }
    assert stores == expected_stores.get(scheme, [])
    assert bytes(fabric) == (b"abc" if scheme == OutputScheme.FABRIC else b"")


@pytest.mark.spec("TOPA-012")
@pytest.mark.parametrize("code", range(16))
def test_size_of_an_entry_is_4_kb_to_128_mb(code: int) -> None:
    size = 4 * K << code
    assert TopaEntry(0x8000_0000, size).encode() == 0x8000_0000 | code << 6
    memory = Memory()
    write_topa_table(memory, TABLE, [0x8000_0000 | code << 6, TopaEntry(B)])
    output = Output(memory, profile=FULL)
    assert output.enable(registers(0, size - 1)) is ACCEPTED
    assert output.write(b"ab") is ACCEPTED
    assert memory.read(0x8000_0000 + size - 1, 1) == b"a"
    assert memory.read(B, 1) == b"b"


@pytest.mark.spec("TOPA-012")
@pytest.mark.parametrize("code", range(16))
def test_size_is_ignored_in_an_end_entry(code: int) -> None:
    output, _ = start([TopaEntry(A), TABLE | 1 | code << 6])
    assert output.write(b"x" * 4 * K) is ACCEPTED
    assert pointers(output) == (TABLE, 0, 0)


@pytest.mark.spec("TOPA-011")
def test_entry_bits_encode_and_decode() -> None:
    assert TopaEntry(A, end=True).encode() == A | 1
    assert TopaEntry(A, interrupt=True).encode() == A | 4
    assert TopaEntry(A, stop=True).encode() == A | 16
    assert TopaEntry.decode(A | 4 | 16 | 2 << 6) == TopaEntry(A, 16 * K, interrupt=True, stop=True)
    for bad in (
        TopaEntry(A, 3 * K),
        TopaEntry(A, 2 * K),
        TopaEntry(A, 256 << 20),
        TopaEntry(A + 1),
    ):
        with pytest.raises(ValueError, match="ToPA"):
            bad.encode()


@pytest.mark.spec("TOPA-003", "TOPA-005", "MSROMP-003")
def test_output_starts_at_the_given_entry_and_offset() -> None:
    output, memory = start(
        [TopaEntry(A), TopaEntry(B), TopaEntry(C, 8 * K)], index=2, offset=0x1100
    )
    for part in (b"a", b"bc", b"d"):
        assert output.write(part) is ACCEPTED
    assert memory.read(C + 0x1100, 4) == b"abcd"
    assert pointers(output) == (TABLE, 2, 0x1104)


@pytest.mark.spec("TOPA-003", "TOPA-005", "TOPA-007")
def test_addresses_have_52_bits() -> None:
    memory = Memory()
    first, last, next_table = 0xF_FFFF_F800_0000, 0x8_0000_0000_0000, 0xF_FFFF_0000_0000
    table = 0xA_5A5A_5A5A_5000
    write_topa_table(memory, table, [TopaEntry(first, 128 << 20), TopaEntry(next_table, end=True)])
    write_topa_table(memory, next_table, [TopaEntry(last)])
    output = Output(memory, profile=FULL)
    values = registers(0, (128 << 20) - 1)
    values.output_base = table
    assert output.enable(values) is ACCEPTED
    assert output.write(b"ab") is ACCEPTED
    assert memory.read(first + (128 << 20) - 1, 1) == b"a"
    assert memory.read(last, 1) == b"b"
    assert pointers(output) == (next_table, 0, 1)


@pytest.mark.spec("MSROMP-003", "MSROMP-004")
@pytest.mark.parametrize("index", [0, 1, 511, (1 << 25) - 1])
def test_table_offset_is_the_entry_index(index: int) -> None:
    memory = Memory()
    memory.write_u64(TABLE + 8 * index, TopaEntry(B).encode())
    output = Output(memory, profile=FULL)
    assert output.enable(registers(index)) is ACCEPTED
    output.write(b"q")
    assert memory.read(B, 1) == b"q"
    assert pointers(output) == (TABLE, index, 1)


@pytest.mark.spec("TOPA-002", "CPUID-024")
@pytest.mark.parametrize("step", [1, 3, 1000, 4096, 20 * K])
def test_regions_form_one_stream(step: int) -> None:
    output, memory = start(
        [TopaEntry(A), TopaEntry(C, 8 * K), TopaEntry(B), TopaEntry(TABLE, end=True)]
    )
    data = stream(16 * K)
    for at in range(0, len(data), step):
        assert output.write(data[at : at + step]) is ACCEPTED
    assert memory.read(A, 4 * K) + memory.read(C, 8 * K) + memory.read(B, 4 * K) == data
    assert pointers(output) == (TABLE, 0, 0)
    output.write(b"again")
    assert memory.read(A, 6) == b"again" + data[5:6]


@pytest.mark.spec("TOPA-006", "TOPA-004")
def test_last_byte_fills_a_region() -> None:
    output, _ = start([TopaEntry(A), TopaEntry(B), TopaEntry(TABLE, end=True)])
    assert output.write(b"x" * 4095) is ACCEPTED
    assert pointers(output) == (TABLE, 0, 4095)
    assert output.write(b"x") is ACCEPTED
    assert pointers(output) == (TABLE, 1, 0)
    output.disable()
    assert pointers(output) == (TABLE, 1, 0)


@pytest.mark.spec("TOPA-007", "MSROBS-005")
@pytest.mark.parametrize("follow", ["eager", "lazy"])
def test_end_entry_leads_to_another_table(follow: Literal["eager", "lazy"]) -> None:
    output, memory = start([TopaEntry(A), TopaEntry(OTHER, end=True)], follow=follow)
    write_topa_table(memory, OTHER, [TopaEntry(B), TopaEntry(TABLE, end=True)])
    assert output.write(b"x" * 4 * K) is ACCEPTED
    assert pointers(output) == ((OTHER, 0, 0) if follow == "eager" else (TABLE, 1, 0))
    assert output.write(b"y") is ACCEPTED
    assert pointers(output) == (OTHER, 0, 1)
    assert memory.read(B, 1) == b"y"
    assert output.write(b"y" * 4 * K) is ACCEPTED
    assert pointers(output) == (TABLE, 0, 1)
    assert memory.read(A, 2) == b"yx"


def test_empty_write_changes_no_pointer() -> None:
    output, _ = start([TopaEntry(A), TopaEntry(OTHER, end=True)], follow="lazy")
    output.write(b"x" * 4 * K)
    before = output.snapshot()
    assert output.write(b"") is ACCEPTED
    assert output.state == before


def test_enabling_at_an_end_entry_follows_it() -> None:
    memory = Memory()
    write_topa_table(memory, TABLE, [TopaEntry(A), TopaEntry(OTHER, end=True)])
    write_topa_table(memory, OTHER, [TopaEntry(B)])
    output = Output(memory, profile=FULL)
    assert output.enable(registers(1, 0x55)) is ACCEPTED
    assert pointers(output) == (OTHER, 0, 0)


@pytest.mark.spec("TOPA-009")
@pytest.mark.parametrize("follow", ["eager", "lazy"])
def test_table_wraps_after_its_last_possible_entry(follow: Literal["eager", "lazy"]) -> None:
    memory = Memory()
    write_topa_table(memory, TABLE, [TopaEntry(A)])
    memory.write_u64(TABLE + 0xFFFFFF8, TopaEntry(B).encode())
    output = Output(memory, profile=FULL, follow=follow)
    assert output.enable(registers(0xFFFFFF8 >> 3, 4094)) is ACCEPTED
    assert output.write(b"abcd") is ACCEPTED
    assert memory.read(B + 4094, 2) == b"ab"
    assert memory.read(A, 2) == b"cd"
    assert pointers(output) == (TABLE, 0, 2)


@pytest.mark.spec("CPUID-024", "TOPA-010")
@pytest.mark.parametrize("cache", ["none", "entry", "table"])
@pytest.mark.parametrize("first", [0, 1, 509, 511, 512])
def test_table_may_exceed_a_page(first: int, cache: Literal["none", "entry", "table"]) -> None:
    memory = Memory()
    write_topa_table(memory, TABLE, [TopaEntry(0x10_0000 + 0x2000 * n) for n in range(520)])
    output = Output(memory, profile=FULL, cache=cache)
    assert output.enable(registers(first)) is ACCEPTED
    data = stream(4 * 4 * K)
    assert output.write(data[:5000]) is ACCEPTED
    assert output.write(data[5000:]) is ACCEPTED
    for n in range(4):
        region = 0x10_0000 + 0x2000 * (first + n)
        assert memory.read(region, 4 * K) == data[4 * K * n : 4 * K * (n + 1)]
    assert pointers(output) == (TABLE, first + 4, 0)


@pytest.mark.spec("TSTP-003", "TOPA-008")
@pytest.mark.parametrize("step", [1, 5, 9000])
def test_stop_ends_output_with_the_last_byte(step: int) -> None:
    output, memory = start([TopaEntry(A), TopaEntry(C, 8 * K, stop=True), TopaEntry(B)])
    data = stream(14 * K)
    done = 0
    result = ACCEPTED
    while result is ACCEPTED:
        part = data[done : done + step]
        result = output.write(part)
        done += len(part) - result.lost
    assert result == OutputResult(lost=result.lost, stopped=True)
    assert done == 12 * K
    assert memory.read(A, 4 * K) + memory.read(C, 8 * K) == data[: 12 * K]
    assert memory.read(B, 1) == b"\0"
    assert pointers(output) == (TABLE, 1, 8 * K)
    assert output.write(b"more") == OutputResult(lost=4, stopped=True)
    output.disable()
    assert pointers(output) == (TABLE, 1, 8 * K)


@pytest.mark.spec("TSTP-004")
def test_enabling_after_a_stop_is_an_error() -> None:
    output, memory = start([TopaEntry(A, stop=True)])
    assert output.write(b"x" * 4 * K).stopped
    values = RegisterFile(TOPA, 0, *output.msrs())
    output = Output(memory, profile=FULL)
    error = output.enable(values).error
    assert error is not None
    assert "OutputOffset 0x1000" in error


@pytest.mark.spec("TPMI-001")
@pytest.mark.parametrize("follow", ["eager", "lazy"])
def test_int_gives_a_pmi_when_the_region_is_filled(follow: Literal["eager", "lazy"]) -> None:
    output, _ = start(
        [TopaEntry(A, interrupt=True), TopaEntry(B), TopaEntry(TABLE, end=True)], follow=follow
    )
    assert output.write(b"x" * 4095) is ACCEPTED
    assert output.write(b"xy") == OutputResult(pmi=True)
    assert output.write(b"x" * 4094) is ACCEPTED
    assert output.write(b"x") is ACCEPTED
    assert output.write(b"x" * 12 * K) == OutputResult(pmi=True)


@pytest.mark.spec("TPMI-001", "TSTP-005")
def test_stop_and_int_of_one_entry_take_effect_together() -> None:
    output, _ = start([TopaEntry(A, interrupt=True, stop=True), TopaEntry(B)])
    assert output.write(b"x" * 5000) == OutputResult(5000 - 4096, stopped=True, pmi=True)


@pytest.mark.spec("CPUID-025", "TOPA-014")
@pytest.mark.parametrize("flags", [{}, {"interrupt": True}, {"stop": True}])
def test_single_entry_table_is_circular(flags: dict[str, bool]) -> None:
    table: list[TopaEntry | int] = [TopaEntry(A, **flags), TopaEntry(TABLE, end=True)]
    output, memory = start(table, profile=BROADWELL)
    result = output.write(b"x" * 4096 + b"y")
    assert result.error is None
    assert result.stopped == ("stop" in flags)
    assert result.pmi == ("interrupt" in flags)
    assert memory.read(A, 1) == (b"x" if "stop" in flags else b"y")


@pytest.mark.spec("TPMI-009", "CPUID-025")
@pytest.mark.parametrize("margin", [0, 1, 512, 4095])
def test_single_entry_pmi_is_early(margin: int) -> None:
    memory = Memory()
    write_topa_table(memory, TABLE, [TopaEntry(A, interrupt=True), TopaEntry(TABLE, end=True)])
    output = Output(memory, profile=BROADWELL, pmi_margin=margin)
    assert output.enable(registers()) is ACCEPTED
    for _ in range(2):
        assert output.write(b"x" * (4096 - margin - 1)) is ACCEPTED
        assert output.write(b"x") == OutputResult(pmi=True)
        assert output.write(b"x" * margin) is ACCEPTED
        assert pointers(output) == (TABLE, 0, 0)


@pytest.mark.spec("TPMI-013")
@pytest.mark.parametrize("offset", [4096 - 512, 4000, 4095])
def test_start_past_the_early_point_still_signals_a_pmi(offset: int) -> None:
    """The first PMI is before the region is filled; the next one is at the early point."""
    memory = Memory()
    write_topa_table(memory, TABLE, [TopaEntry(A, interrupt=True), TopaEntry(TABLE, end=True)])
    output = Output(memory, profile=BROADWELL)
    assert output.enable(registers(offset=offset)) == OutputResult(pmi=True)
    assert output.write(b"x" * (4096 - offset)) is ACCEPTED
    assert output.write(b"x" * 3583) is ACCEPTED
    assert output.write(b"x") == OutputResult(pmi=True)
    assert output.write(b"x" * 512) is ACCEPTED


@pytest.mark.spec("TPMI-010")
def test_single_entry_without_stop_overwrites_the_top() -> None:
    output, memory = start([TopaEntry(A), TopaEntry(TABLE, end=True)], profile=BROADWELL)
    assert output.write(b"old" + b"." * 4093 + b"new") is ACCEPTED
    assert memory.read(A, 3) == b"new"
    output, memory = start([TopaEntry(A, stop=True), TopaEntry(TABLE, end=True)], profile=BROADWELL)
    assert output.write(b"old" + b"." * 4093 + b"new").lost == 3
    assert memory.read(A, 3) == b"old"


@pytest.mark.spec("TPMI-011")
@pytest.mark.parametrize("grow", ["append", "new table", "circular"])
def test_tables_edited_while_disabled_are_honoured(grow: str) -> None:
    """The handler of Table 33-4: INT at entry 0; it adds regions while tracing is off."""
    output, memory = start([TopaEntry(A, interrupt=True), TopaEntry(B), 0])
    assert output.write(b"1" * 4096).pmi
    output.disable()
    values = RegisterFile(TOPA, 0, *output.msrs())
    if grow == "append":
        write_topa_table(memory, TABLE + 16, [TopaEntry(C), TopaEntry(TABLE, end=True)])
    elif grow == "new table":
        write_topa_table(memory, OTHER, [TopaEntry(C), TopaEntry(OTHER, end=True)])
        write_topa_table(memory, TABLE + 16, [TopaEntry(OTHER, end=True)])
    else:
        write_topa_table(memory, TABLE, [TopaEntry(C)])
        write_topa_table(memory, TABLE + 16, [TopaEntry(TABLE, end=True)])
    assert output.enable(values) is ACCEPTED
    assert output.write(b"2" * 4096 + b"3" * 10) is ACCEPTED
    assert memory.read(A, 4096) == b"1" * 4096
    assert memory.read(B, 4096) == b"2" * 4096
    assert memory.read(C, 10) == b"3" * 10


def test_restored_snapshot_writes_to_its_region() -> None:
    output, memory = start([TopaEntry(A), TopaEntry(B), TopaEntry(TABLE, end=True)])
    output.write(b"abc")
    saved = output.snapshot()
    output.write(b"x" * 4096)
    output.write(b"y")
    output.restore(saved)
    output.write(b"def")
    assert memory.read(A, 7) == b"abcdefx"
    assert memory.read(B, 5) == b"xxxy\0"


@pytest.mark.spec("TOPA-015")
def test_stores_go_straight_to_physical_memory() -> None:
    seen: list[tuple[int, bytes]] = []
    memory = Memory(observer=lambda at, data: seen.append((at, data)))
    write_topa_table(memory, TABLE, [TopaEntry(A), TopaEntry(B)])
    output = Output(memory, profile=replace(FULL, maxphyaddr=36))
    output.enable(registers(0, 4094))
    output.write(b"abc")
    output.write(b"d")
    assert seen == [(A + 4094, b"ab"), (B, b"c"), (B + 1, b"d")]
