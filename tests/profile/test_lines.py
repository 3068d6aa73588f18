"""Which lines of source instructions are made from, by how the file is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rtit.image import FileSymbols
from rtit.profile.source_lines import address_windows, line_ranges, source_lines_at
from support.limits import assert_peak_memory
from support.oversized_elf import TEXT, build_dwarf_elf, build_large_elf

SIZE = 1 << 20
UNIT, LINE = 1 << 16, 8
"""Bytes of code of a file of source, and of a line."""


@pytest.mark.parametrize("step", [1, 7, 1000, 100_000])
def test_lines_of_what_is_asked_for(step: int, tmp_path: Path) -> None:
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


def test_a_few_of_many_lines_are_few(tmp_path: Path) -> None:
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


def test_a_unit_that_has_its_code_again_and_again(tmp_path: Path) -> None:
    """Its lines are those of each time."""
    path = tmp_path / "it.so"
    for ranges in (1, 1 << 11):
        path.write_bytes(build_large_elf(UNIT, aliases=1, ranges=ranges))
        [whole] = line_ranges(FileSymbols(path))
        assert len(whole.start) == UNIT // LINE


def test_parts_have_so_many_lines_and_no_more(tmp_path: Path) -> None:
    """2^19, by the decision on what grows."""
    path = tmp_path / "it.so"
    path.write_bytes(build_dwarf_elf("dwarf-lines", 2 * SIZE))
    symbols = FileSymbols(path)
    first, *others = [len(part.start) for part in line_ranges(symbols)]
    assert first == 1 << 19
    assert max(others) <= 1 << 19
    # a line a byte
    assert sum([first, *others]) == SIZE
    starts, *_, following, _ = symbols.native.lines()
    assert (len(starts), following) == (1 << 19, TEXT + (1 << 19))


def test_windows_are_few_however_many_places_are_asked_for() -> None:
    """Each part of the code of a unit is looked for in all of them."""
    for step in (1, 100, 1 << 20, 1 << 40):
        addresses = np.arange(20_000, dtype=np.uint64) * np.uint64(step)
        windows = address_windows(addresses)
        assert 0 < len(windows) <= 1 << 10
        at = np.searchsorted([low for low, _ in windows], addresses, "right") - 1
        assert (addresses < np.array([high for _, high in windows], np.uint64)[at]).all()
