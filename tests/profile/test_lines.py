"""Source lines of instructions, in generated files with known line tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rtit.image import FileSymbols
from rtit.image.source_lines import address_windows, line_ranges, source_lines_at
from support.limits import assert_peak_memory
from support.oversized_elf import TEXT, build_dwarf_elf, build_large_elf

SIZE = 1 << 20
UNIT, LINE = 1 << 16, 8
"""Bytes of code per source file, and per line."""


@pytest.mark.parametrize("step", [1, 7, 1000, 100_000])
def test_requested_offsets_get_their_lines(step: int, tmp_path: Path) -> None:
    path = tmp_path / "it.so"
    path.write_bytes(build_large_elf(SIZE))
    symbols = FileSymbols(path)
    offsets = np.arange(0, SIZE + 2 * step, step, dtype=np.uint64)
    found = source_lines_at(symbols, offsets + TEXT)
    names = [found.files[number] if number >= 0 else "" for number in found.file.tolist()]
    assert names == [
        f"/nowhere/source{at // UNIT}.c" if at < SIZE else "" for at in offsets.tolist()
    ]
    assert found.line.tolist() == [
        at % UNIT // LINE + 1 if at < SIZE else 0 for at in offsets.tolist()
    ]


def test_few_offsets_of_a_large_table_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "it.so"
    path.write_bytes(build_large_elf(8 * SIZE, aliases=1))
    symbols = FileSymbols(path)
    assert len(symbols.offsets)
    asked = np.array([TEXT, SIZE], np.uint64)
    with assert_peak_memory(16):
        found = source_lines_at(symbols, asked)
        [part] = line_ranges(symbols, address_windows(asked))
    assert found.line.tolist() == [1, (SIZE - TEXT) % UNIT // LINE + 1]
    assert len(part.start) < 100


def test_unit_with_repeated_ranges_has_each_line_once(tmp_path: Path) -> None:
    """Repeated address ranges of a unit do not repeat its lines."""
    path = tmp_path / "it.so"
    for ranges in (1, 1 << 11):
        path.write_bytes(build_large_elf(UNIT, aliases=1, ranges=ranges))
        [whole] = line_ranges(FileSymbols(path))
        assert len(whole.start) == UNIT // LINE


def test_line_tables_are_read_in_bounded_chunks(tmp_path: Path) -> None:
    """A chunk has at most 2^19 rows."""
    path = tmp_path / "it.so"
    path.write_bytes(build_dwarf_elf("dwarf-lines", 2 * SIZE))
    symbols = FileSymbols(path)
    first, *others = [len(part.start) for part in line_ranges(symbols)]
    assert first == 1 << 19
    assert max(others) <= 1 << 19
    # a line per byte
    assert sum([first, *others]) == SIZE
    starts, *_, following, _ = symbols.native.source_lines()
    assert (len(starts), following) == (1 << 19, TEXT + (1 << 19))


def test_address_windows_are_bounded_and_cover_all_addresses() -> None:
    """Native code searches all windows for each range of a unit, so there must be few."""
    for step in (1, 100, 1 << 20, 1 << 40):
        addresses = np.arange(20_000, dtype=np.uint64) * np.uint64(step)
        windows = address_windows(addresses)
        assert 0 < len(windows) <= 1 << 10
        at = np.searchsorted([low for low, _ in windows], addresses, "right") - 1
        assert (addresses < np.array([high for _, high in windows], np.uint64)[at]).all()
