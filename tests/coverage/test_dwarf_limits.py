"""Memory of source lines is bounded by the file size, also for hostile DWARF."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.coverage import coverage, source_coverage, source_files
from rtit.trace import Trace
from support.limits import assert_peak_memory
from support.oversized import write_oversized
from support.oversized_elf import DWARF_KINDS, FUNCTION_INSTRUCTIONS, FUNCTION_SIZE

SIZE = 1 << 21
"""Bytes of DWARF."""
LINES = 1 << 15
INCOMPLETE = {"dwarf-names"}
"""Paths of all source files take more than 16 MB."""
SUBCOMMANDS = {
    "coverage": ["coverage", "--format", "lcov"],
    "callgrind": ["profile", "--for", "callgrind"],
    "pprof": ["profile", "--for", "pprof"],
}


@pytest.mark.slow
@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
@pytest.mark.parametrize("kind", DWARF_KINDS)
def test_hostile_dwarf_takes_bounded_memory(
    kind: str, subcommand: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    words = [*SUBCOMMANDS[subcommand], "-o", str(tmp_path / "out")]
    # libraries that it loads are not counted
    assert main([*words, str(write_oversized(small, "elf-little", 1 << 14))]) == 0
    path = write_oversized(tmp_path, kind, SIZE)
    capsys.readouterr()
    with assert_peak_memory(100):
        code = main([*words, str(path)])
    said = capsys.readouterr().err
    is_incomplete = kind in INCOMPLETE
    assert code == (3 if is_incomplete else 0)
    assert ("its DWARF has more lines than rtit reads" in said) == is_incomplete


def test_unexecuted_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that ran stay in the report."""
    path = write_oversized(tmp_path, "elf-little", 1 << 20)

    def count() -> tuple[dict[tuple[str, int], int], int, int, list[str]]:
        with Trace(path) as trace:
            found = coverage([(trace, trace.streams)])
        files = source_files(found)
        counts = {
            (each.path, line): count for each in files for line, count in each.iterate_lines()
        }
        ways = sum(each.outcomes_hit for each in files), sum(each.outcome_count for each in files)
        return counts, *ways, found.losses

    whole, ways, ways_found, lost = count()
    assert not lost
    # a line has 8 bytes of code, a function a branch
    assert len(whole) == (1 << 20) // 8
    assert ways_found == 2 * ((1 << 20) // FUNCTION_SIZE)
    monkeypatch.setattr(source_coverage, "_UNEXECUTED_BYTES", 64 * 1000)
    some, same_ways, fewer_found, lost = count()
    assert {line: count for line, count in whole.items() if count} == {
        line: count for line, count in some.items() if count
    }
    assert some.items() <= whole.items()
    assert len(some) <= 2000
    assert same_ways == ways > 0
    assert fewer_found <= 2000
    assert lost == [
        f"{path.with_suffix('.so')}: source lines: its DWARF has more lines than rtit reads"
    ]


def test_two_million_unexecuted_lines_are_kept(tmp_path: Path) -> None:
    path = write_oversized(tmp_path, "dwarf-lines", 9 << 19)
    with Trace(path) as trace:
        found = coverage([(trace, trace.streams)])
    [source] = source_files(found)
    assert len(found.losses) == 1
    # up to the last branch of 60 functions, each instruction on a separate line
    assert 59 < source.lines_hit / FUNCTION_INSTRUCTIONS < 60
    assert 1 << 20 < source.line_count <= 1 << 21


def test_chunk_size_does_not_change_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_oversized(tmp_path, "elf-whole", 8 * LINES)
    out = tmp_path / "out"
    words = ["coverage", "--format", "lcov", "-o", str(out), str(path)]
    assert main(words) == 0
    whole = out.read_bytes()
    monkeypatch.setattr("rtit.image.source_lines.MAX_LINES", LINES // 32)
    monkeypatch.setattr(source_coverage, "_LINES_AT_ONCE", 70)
    assert main(words) == 0
    assert out.read_bytes() == whole
    # each part goes over all tables: there are 32 at most
    monkeypatch.setattr("rtit.image.source_lines.MAX_LINES", LINES // 33)
    capsys.readouterr()
    assert main(words) == 3
    assert "its DWARF has more lines than rtit reads" in capsys.readouterr().err
    some = [line for line in out.read_bytes().splitlines() if line.startswith(b"DA:")]
    assert len(some) == LINES // 33 * 32
    assert {*some} <= {*whole.splitlines()}
