"""Memory for the symbols of a large file."""

from __future__ import annotations

from pathlib import Path

from rtit.image import FileSymbols
from support.limits import assert_peak_memory
from support.oversized_elf import FUNCTION_SIZE, build_large_elf


def test_names_of_large_elf_file_take_bounded_memory(tmp_path: Path) -> None:
    """2^18 functions with two names of about 50 bytes each: tables of 40 MB."""
    size = 1 << 24
    path = tmp_path / "it.so"
    path.write_bytes(build_large_elf(size))
    symbols = FileSymbols(path)
    with assert_peak_memory(95):
        names = len(symbols.bindings)
    assert names == 2 * size // FUNCTION_SIZE
    assert symbols.name(0) == "_ZN8Flood0_027with_a_name_of_usual_lengthEv"
