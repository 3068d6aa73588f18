"""A file that ends early: every reading verb says so, with exit code 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.packets import encode
from rtit.perfdata import Writer

VERBS = ["packets", "instructions", "report", "events", "lint"]
OTHER = encode("PSB") + encode("CBR", ratio=10) + encode("PSBEND")


@pytest.fixture
def two(tmp_path: Path) -> bytes:
    """A recording of two threads, that has nothing of code in it, and needs none."""
    path = tmp_path / "perf.data"
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.auxtrace(7, 7, OTHER, None, 1)
        out.auxtrace(8, 7, OTHER, None, 1)
    return path.read_bytes()


@pytest.mark.parametrize("verb", VERBS)
def test_a_whole_one(two: bytes, verb: str, tmp_path: Path) -> None:
    assert main([verb, str(tmp_path / "perf.data")]) == 0


@pytest.mark.parametrize("verb", VERBS)
def test_cut(two: bytes, verb: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Within its features, within a record, between two records."""
    second = two.rindex(OTHER)
    path = tmp_path / "cut"
    for size in (len(two) - 1, second + 5, two.index(OTHER) + len(OTHER)):
        path.write_bytes(two[:size])
        assert main([verb, str(path)]) == 3, size
        said = capfd.readouterr()
        assert "incomplete" in (said.out if verb == "report" else said.err)


@pytest.mark.parametrize("verb", ["packets", "instructions"])
def test_bare_packets_that_end_within_one(
    verb: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pt.bin"
    path.write_bytes(OTHER + OTHER[:16] + bytes([0x19, 1, 2]))
    assert main([verb, "--raw", str(path)]) == 3
