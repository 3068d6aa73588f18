"""Functions without a symbol, whose bounds are those of frame descriptions (.eh_frame)."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.errors import ImageError
from rtit.image import FileSymbols
from rtit.trace import Trace
from support.recordings import RTIT, require_backend

SOURCE = """
#include <stdio.h>
__attribute__((noinline)) static int square(int x) { return x * x; }
__attribute__((noinline)) static int sum_of_squares(int n) {
    int sum = 0;
    for (int i = 1; i <= n; i++)
        sum += square(i) & 0xff;
    return sum;
}
__attribute__((noinline)) int exported(int n) { return sum_of_squares(n) + square(n); }
int main(void) { printf("%d\\n", exported(100)); return 0; }
"""
OWN = ("square", "sum_of_squares", "exported", "main")


def build(folder: Path, *flags: str) -> tuple[Path, Path]:
    """Return a program and a stripped copy of it."""
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    strip = shutil.which("strip") or pytest.skip("no binutils")
    program, stripped = folder / "program", folder / "stripped"
    command = [compiler, "-O1", *flags, "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    subprocess.run([strip, "-o", stripped, program], check=True)
    return program, stripped


def frames_that_readelf_prints(path: Path) -> set[tuple[int, int]]:
    """Return (address, size) of all frame descriptions outside of the linkage table."""
    printed = subprocess.run(
        ["readelf", "-WS", "--debug-dump=frames", path],
        capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"},
    ).stdout  # fmt: skip
    stubs = [
        (int(address, 16), int(address, 16) + int(size, 16))
        for address, size in re.findall(r"\.plt\S* +PROGBITS +(\w+) \w+ (\w+)", printed)
    ]
    ranges = re.findall(r" FDE cie=\w+ pc=(\w+)\.\.(\w+)", printed)
    found = {(int(start, 16), int(end, 16) - int(start, 16)) for start, end in ranges}
    return {
        (start, size)
        for start, size in found
        if not any(first <= start < end for first, end in stubs)
    }


@pytest.mark.parametrize("flags", [(), ("-no-pie",), ("-rdynamic",), ("-static",)])
def test_stripped_functions_are_those_of_the_symbol_table(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    program, stripped = build(tmp_path, *flags)
    symbols = FileSymbols(program)
    found = FileSymbols(stripped, recorded_path="/usr/bin/tool")
    bounds = {(each.address, each.size): each.name for each in found.functions}
    for name in OWN:
        (own,) = symbols.find_by_name(name)
        is_exported = flags == ("-rdynamic",) and name in ("exported", "main")
        expected = name if is_exported else f"tool+{own.address:#x}"
        assert bounds[own.address, own.size] == expected
    unnamed = {(each.address, each.size) for each in found.functions if each.binding == "f"}
    frames = frames_that_readelf_prints(stripped)
    assert unnamed <= frames
    assert all(found.find_function(offset_of(found, start)) for start, _ in frames)


def offset_of(symbols: FileSymbols, address: int) -> int:
    for offset, start, size, _, flags in symbols.segments:
        if flags & 1 and start <= address < start + size:
            return offset + address - start
    raise AssertionError(f"{address:#x} is no code")


def test_frames_change_no_function_with_a_symbol(tmp_path: Path) -> None:
    paths = [*build(tmp_path), Path(sys.executable).resolve(), Path("/lib64/ld-linux-x86-64.so.2")]
    for path in paths:
        named = FileSymbols(path).functions
        with_frames = FileSymbols(path, recorded_path=str(path)).functions
        sized = [(each.name, each.offset) for each in named]
        assert [(each.name, each.offset) for each in with_frames if each.binding != "f"] == sized


def test_corrupted_frames_give_functions_or_none(tmp_path: Path) -> None:
    """Nothing panics, and no table grows: an entry takes more bytes than one."""
    _, stripped = build(tmp_path)
    whole = stripped.read_bytes()
    header = re.search(
        r"\.eh_frame +PROGBITS +\w+ (\w+) (\w+)",
        subprocess.run(
            ["readelf", "-WS", stripped], capture_output=True, text=True, check=True
        ).stdout,
    )
    assert header is not None
    start, size = int(header[1], 16), int(header[2], 16)
    rng, path = random.Random(7), tmp_path / "bad"
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            changed[start + rng.randrange(size)] = rng.choice((0, 1, 4, 0x7F, 0x80, 0xFF))
        path.write_bytes(changed)
        symbols = FileSymbols(path, recorded_path="bad")
        assert len(symbols.functions) < size
        for each in symbols.functions:
            assert symbols.find_function(each.offset) is not None
    path.write_bytes(whole[: start + size // 2])
    with pytest.raises(ImageError):
        _ = FileSymbols(path, recorded_path="bad").functions


def counts_by_function(data: Path) -> dict[tuple[str, str], int]:
    with Trace(data) as trace:
        return {
            (name, Path(module).name): count
            for stream in trace.streams
            for name, module, count in stream.instructions_by_function(trace.symbols)
        }


def record(folder: Path, *command: str | Path) -> Path:
    require_backend("qemu")
    data = folder / f"{Path(command[0]).name}.data"
    options: list[str | Path] = ["-q", "-o", data, "--no-aslr"]
    subprocess.run([*RTIT, "record", *options, "--", *command], check=True, timeout=300)
    return data


def test_commands_show_functions_of_a_stripped_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are those of the program with symbols, under other names."""
    program, stripped = build(tmp_path)
    data = record(tmp_path, stripped)
    named = counts_by_function(record(tmp_path, program))
    found = counts_by_function(data)
    symbols = FileSymbols(program)
    texts = {}
    for name in OWN:
        (own,) = symbols.find_by_name(name)
        texts[name] = f"stripped+{own.address:#x}"
        assert found[texts[name], "stripped"] == named[name, "program"]
    capsys.readouterr()
    assert main(["instructions", "--fields", "sym", "--function", texts["square"], str(data)]) == 0
    rows = capsys.readouterr().out.split()
    assert len(rows) == named["square", "program"]
    assert rows[0] == texts["square"]
    assert rows[1].startswith(texts["square"] + "+0x")
    assert main(["calls", "--min-share", "0", "--function", texts["exported"], str(data)]) == 0
    printed = re.findall(r" ([\d,]+) +(stripped\S+)", capsys.readouterr().out)
    names = {text: name for name, text in texts.items()}
    assert sorted((names[text], int(calls)) for calls, text in printed) == [
        ("exported", 1),
        ("square", 1),
        ("square", 100),
        ("sum_of_squares", 1),
    ]
    assert main(["profile", "--for", "callgrind", str(data)]) == 0
    assert texts["sum_of_squares"] in capsys.readouterr().out


def test_nearly_all_code_of_a_stripped_python_has_a_function(tmp_path: Path) -> None:
    python, strip = Path("/usr/bin/python3"), shutil.which("strip")
    if strip is None or not python.exists():
        pytest.skip("no system Python, or no binutils")
    stripped = tmp_path / "python3"
    subprocess.run([strip, "-o", stripped, python.resolve()], check=True)
    counts = counts_by_function(record(tmp_path, stripped, "-S", "-c", "print(sum(range(9)))"))
    without = sum(count for (name, _), count in counts.items() if not name)
    assert without < 0.05 * sum(counts.values())
