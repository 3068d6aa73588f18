"""Limits on memory and time for DWARF of an ELF file, and its interruption."""

from __future__ import annotations

import operator
import signal
import struct
import time
import zlib
from _thread import interrupt_main
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rtit.image import FileSymbols
from support.limits import assert_peak_memory
from support.oversized_elf import (
    DWARF_KINDS,
    NEXT_LINE,
    TEXT,
    build_dwarf_elf,
    line_program,
    repeated_functions,
    shared_object,
)

SHF_COMPRESSED, ZSTD = 1 << 11, 2
MOST = 1 << 27
"""What compressed sections unpack to, together."""
LARGEST = 1 << 28
"""A larger file is not searched."""
LINES = DWARF_KINDS["dwarf-lines"](1 << 10)


def count_lines(path: Path) -> tuple[int, bool]:
    """Return the number of line ranges of a file, and whether it has more that are not read."""
    starts, *_, is_incomplete = FileSymbols(path).native.lines()
    return len(starts), is_incomplete


def write_elf(path: Path, sections: dict[str, bytes]) -> Path:
    path.write_bytes(shared_object(repeated_functions(1 << 10), sections))
    return path


@pytest.mark.parametrize("more", [0, 1])
def test_decompressed_sections_are_limited(more: int, tmp_path: Path) -> None:
    half = b"ZLIB" + struct.pack(">Q", MOST // 2) + zlib.compress(bytes(MOST // 2), 1)
    size = MOST // 2 + more
    other = b"ZLIB" + struct.pack(">Q", size) + zlib.compress(bytes(size), 1)
    packed = {".zdebug_line_str": half, ".zdebug_str": other}
    path = write_elf(tmp_path / "it.so", {**LINES, **packed})
    count, _ = count_lines(write_elf(tmp_path / "plain.so", LINES))
    assert path.stat().st_size < MOST // 100
    assert count_lines(path) == (count, bool(more))


def test_oversized_zstd_frame_is_limited(tmp_path: Path) -> None:
    """RFC 8878: a window of 1 MB, blocks of a byte each that is there 128 KB times."""
    blocks = (1 << 17 << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    frame = struct.pack("<IBB", 0xFD2FB528, 0, 10 << 3) + blocks * (1 << 13)
    section = struct.pack("<IIQQ", ZSTD, 0, 1 << 10, 1) + frame
    path = write_elf(tmp_path / "it.so", {**LINES, ".debug_str": section})
    data = bytearray(path.read_bytes())
    # the second from the end: the names of sections come last
    [table], [count] = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<H", data, 0x3C)
    struct.pack_into("<Q", data, table + 64 * (count - 2) + 8, SHF_COMPRESSED)
    path.write_bytes(data)
    with assert_peak_memory(64):
        count, is_incomplete = count_lines(path)
    assert count
    assert is_incomplete


def test_missing_file_numbers_are_bounded(tmp_path: Path) -> None:
    """Four million rows, each of another file: what its name is would be remembered of each."""
    number = np.arange(1 << 21, 3 << 21, dtype=np.uint32)
    rows = np.empty((len(number), 6), np.uint8)
    rows[:, 0], rows[:, 5] = 4, NEXT_LINE  # DW_LNS_set_file
    for column in range(4):
        rows[:, 1 + column] = number >> np.uint32(7 * column) & np.uint32(127)
    rows[:, 1:4] |= 128
    program = line_program(rows.tobytes())
    unit = DWARF_KINDS["dwarf-programs"](1)
    path = write_elf(tmp_path / "it.so", {**unit, ".debug_line": program})
    del rows, number, program
    with assert_peak_memory(100):
        assert count_lines(path) == (0, False)


def test_large_file_is_not_searched(tmp_path: Path) -> None:
    path = write_elf(tmp_path / "it.so", LINES)
    found = []
    for size in (LARGEST, LARGEST + 1):
        with path.open("r+b") as file:
            file.truncate(size)
        found.append(count_lines(path)[0] > 0)
    assert found == [True, False]


@pytest.mark.parametrize("kind", ["dwarf-programs", "dwarf-abbreviations", "dwarf-ranges"])
@pytest.mark.parametrize("how", ["lines", "line"])
def test_dwarf_parsing_can_be_interrupted(kind: str, how: str, tmp_path: Path) -> None:
    """The signal is there before the question, and no bytecode runs in between: it is the question
    that raises, or else it is answered.
    """
    path = tmp_path / "it.so"
    path.write_bytes(build_dwarf_elf(kind, 1 << 22))
    native = FileSymbols(path).native
    asks: dict[str, Callable[[], object]] = {
        "lines": native.lines,
        "line": partial(native.line, TEXT),
    }
    call: Callable[[Callable[[], object]], object] = operator.call
    native.at(0)
    time.sleep(0.1)  # handlers run every 50 ms at most
    answers: list[object] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            answers.extend(map(call, [interrupt_main, asks[how]]))
    finally:
        signal.signal(signal.SIGINT, before)
    assert answers == [None]
