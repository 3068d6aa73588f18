"""Load headers of ELF files, compared with readelf."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.build import SOURCES, CannotBuildError, compiled
from rtit.errors import ImageError
from rtit.image import load_bias, open_program_file

LOAD = re.compile(r"^  LOAD +(0x\w+) (0x\w+) 0x\w+ (0x\w+) (0x\w+) ([R ][W ][E ])", re.MULTILINE)
DYNAMIC = re.compile(r"^  DYNAMIC +0x\w+ (0x\w+)", re.MULTILINE)
ENTRY = re.compile(r"^Entry point (0x\w+)$", re.MULTILINE)
COUNT = re.compile(r"^There are (\d+) program headers", re.MULTILINE)
FLAGS = {"R": 4, "W": 2, "E": 1, " ": 0}


def built(*flags: str) -> Path:
    try:
        return compiled("builds", [str(SOURCES / "builds.c")], language="c", flags=[*flags])
    except CannotBuildError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("flags", "program", "loader"),
    [
        (["-pie", "-fPIE"], True, True),
        (["-no-pie"], True, True),
        (["-static"], True, False),
        (["-static-pie", "-fPIE"], True, False),
        (["-shared", "-fPIC"], False, False),
    ],
)
def test_elf_headers_match_readelf(flags: list[str], program: bool, loader: bool) -> None:
    path = built(*flags)
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    said = subprocess.run(
        [readelf, "-Wl", str(path)], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}
    ).stdout
    found = open_program_file(path)
    entry, count, dynamic = ENTRY.search(said), COUNT.search(said), DYNAMIC.search(said)
    assert entry is not None
    assert count is not None
    assert (found.entry, found.program_headers[1]) == (int(entry[1], 16), int(count[1]))
    assert found.dynamic == (int(dynamic[1], 16) if dynamic is not None else 0)
    assert found.segments == [
        (*(int(number, 16) for number in row[:4]), sum(FLAGS[flag] for flag in row[4]))
        for row in LOAD.findall(said)
    ]
    assert (found.is_program, found.has_loader) == (program, loader)
    # The table lies behind the header of 64 bytes, in the first segment.
    assert found.program_headers[0] == found.segments[0][1] + 64


def test_load_bias_follows_from_a_mapping() -> None:
    found = open_program_file(built("-pie", "-fPIE"))
    [(offset, address)] = [each[:2] for each in found.segments if each[4] & 1]
    page = offset & -4096
    bias = load_bias(found, page, 4096, 0x7000_0000 + page)
    assert bias == 0x7000_0000 + offset - address
    # A mapping of all of the file from its beginning on has the code in it.
    assert load_bias(found, 0, page + 4096, 0x5000) == 0x5000 + offset - address
    assert load_bias(found, page + (1 << 20), 4096, 0) is None


@pytest.fixture(scope="module")
def whole() -> Path:
    return built("-pie", "-fPIE")


@given(
    at=st.integers(0, 64 + 56 * 14),
    new=st.binary(min_size=1, max_size=9),
    size=st.integers(0, 0x4000),
)
def test_corrupted_headers_raise(
    whole: Path, at: int, new: bytes, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    head = whole.read_bytes()[:0x4000]
    path = tmp_path_factory.getbasetemp() / "broken"
    path.write_bytes((head[:at] + new + head[at + len(new) :])[:size])
    with contextlib.suppress(ImageError):
        found = open_program_file(path)
        assert load_bias(found, 0, sys.maxsize, 0) is None or found.segments


@pytest.mark.parametrize("text", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\1\1\1" + bytes(57)])
def test_headers_of_non_elf_file_raise(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(ImageError, match=r"not an? (64-bit )?ELF file"):
        open_program_file(tmp_path / "file")


def test_program_headers_beyond_end_of_file_raise(tmp_path: Path) -> None:
    data = bytearray(built("-pie", "-fPIE").read_bytes()[:64])
    for at in (1 << 20, 1 << 61, (1 << 64) - 1):
        data[32:40] = at.to_bytes(8, "little")
        (tmp_path / "file").write_bytes(data)
        with pytest.raises(ImageError, match="bad ELF program headers"):
            open_program_file(tmp_path / "file")
