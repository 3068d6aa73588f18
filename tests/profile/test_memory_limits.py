"""Memory of profiles of large files is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.cli.main import main
from support.limits import assert_peak_memory
from support.oversized import write_oversized

SIZE = 1 << 21
"""Of code: 622,592 instructions on 262,144 lines, and a call from each function to the next."""
MOST = {"callgrind": 190, "pprof": 130}
"""Megabytes."""


@pytest.mark.slow
@pytest.mark.parametrize("tool", MOST)
def test_fully_executed_large_file_takes_bounded_memory(tool: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    words = ["profile", "--for", tool, "-o", str(tmp_path / "out")]
    # loads modules, so that they do not count
    assert main([*words, str(write_oversized(small, "elf-whole", 1 << 12))]) == 0
    path = write_oversized(tmp_path, "elf-whole", SIZE)
    with assert_peak_memory(MOST[tool]):
        assert main([*words, str(path)]) == 0


@pytest.mark.slow
def test_deep_calling_contexts_take_bounded_memory(tmp_path: Path) -> None:
    """Each context is written with its whole stack; stacks are not stored."""
    small = tmp_path / "small"
    small.mkdir()
    words = ["profile", "--for", "pprof", "-o", str(tmp_path / "out")]
    main([*words, str(write_oversized(small, "deep", 1 << 10))])
    path = write_oversized(tmp_path, "deep", 1 << 17)
    with assert_peak_memory(120):
        main([*words, str(path)])
