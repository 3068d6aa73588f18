"""Functions of stripped Go programs, compared with the symbol table of the same program."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rtit.image import FileSymbols

SOURCE = """
package main

import "fmt"

type square struct{ side int }

//go:noinline
func (s square) area() int { return s.side * s.side }

//go:noinline
func total(sides []int) (sum int) {
	for _, side := range sides {
		sum += square{side}.area()
	}
	return sum
}

func main() { fmt.Println(total([]int{2, 3})) }
"""
PADDING = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Go program, and with stripped ones."""
    go = shutil.which("go") or pytest.skip("no Go compiler")
    folder = tmp_path_factory.mktemp("go")
    (folder / "main.go").write_text(SOURCE)
    for name, *flags in (
        ("whole",),
        ("stripped", "-ldflags=-s -w"),
        ("pie", "-buildmode=pie"),
        ("stripped-pie", "-buildmode=pie", "-ldflags=-s -w"),
    ):
        command = [go, "build", *flags, "-o", name, "main.go"]
        subprocess.run(command, cwd=folder, check=True, timeout=300)
    return folder


@pytest.mark.parametrize("kind", ["", "-pie"])
def test_stripped_go_program_has_the_functions_of_its_symbol_table(folder: Path, kind: str) -> None:
    """A function reaches to the next one, so padding belongs to it."""
    whole = folder / ("pie" if kind else "whole")
    printed = subprocess.run(["nm", "-S", whole], capture_output=True, text=True, check=True).stdout
    expected = {
        name: (int(address, 16), int(size, 16))
        for address, size, name in re.findall(r"^(\w+) (\w+) [tT] (main\.\S+)$", printed, re.M)
    }
    assert {"main.main", "main.total", "main.square.area"} <= expected.keys()
    found = {each.name: each for each in FileSymbols(folder / f"stripped{kind}").functions}
    for name, (address, size) in expected.items():
        assert found[name].address == address
        assert size <= found[name].size < size + PADDING


def test_corrupted_go_table_gives_functions_or_none(folder: Path, tmp_path: Path) -> None:
    """Nothing panics, and there are no more functions than the table has bytes."""
    whole = (folder / "stripped").read_bytes()
    header = re.search(rb"[\xf0\xf1]\xff\xff\xff\x00\x00\x01\x08", whole)
    assert header is not None
    start = header.start()
    rng, path = random.Random(5), tmp_path / "bad"
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            changed[start + rng.randrange(80)] = rng.choice((0, 1, 4, 0x7F, 0x80, 0xFF))
        path.write_bytes(changed)
        assert len(FileSymbols(path).functions) < len(whole)
    path.write_bytes(whole[: start + 40])
    assert FileSymbols(path).functions == []
