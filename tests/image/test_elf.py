"""ELF files compared with readelf, nm and objdump, and malformed files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rtit.errors import ImageError
from rtit.image import FileSymbols
from support.elf import CODE_AT, elf_with_segments

core = pytest.importorskip("rtit._core", reason="the native module is not built")

SOURCE = """
#include <string.h>
static int twice(int x) { return x + x; }
__attribute__((noinline)) int inner(int x) { return twice(x) * 3; }
int main(int argc, char **argv) { return inner(argc) + (int)strlen(argv[0]) + puts("hi"); }
"""
BARE = """
.globl _start
.type _start, @function
_start: xor %edi, %edi
        call helper
        mov $60, %eax
        syscall
.size _start, . - _start
helper: ret
"""


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def compiled(folder: Path, *flags: str) -> Path:
    out = folder / "program"
    source = folder / "program.c"
    source.write_text("#include <stdio.h>\n" + SOURCE)
    subprocess.run([tool("gcc"), "-O1", *flags, "-o", out, source], check=True)
    return out


def build_without_symbols(folder: Path) -> Path:
    out = folder / "bare"
    source = folder / "bare.s"
    source.write_text(BARE)
    command = [tool("gcc"), "-nostdlib", "-static", "-Wl,--build-id=none,-z,noseparate-code"]
    subprocess.run([*command, "-o", out, source], check=True)
    return out


def said(*command: str | Path) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        [tool(str(command[0])), *command[1:]],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout


@pytest.mark.parametrize("path", ["/bin/true", "/bin/sh", "/usr/bin/env"])
def test_build_id_is_what_readelf_prints(path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"{path} is not here")
    printed = re.search(r"Build ID: ([0-9a-f]+)", said("readelf", "-n", path))
    if printed is None:
        pytest.skip(f"{path} has no build id")
    assert core.ElfFile(path).build_id.hex() == printed[1]


@pytest.mark.parametrize("flags", [(), ("-no-pie",), ("-static",)])
def test_header_and_segments_are_what_readelf_prints(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    path = compiled(tmp_path, *flags)
    elf = core.ElfFile(path)
    header = said("readelf", "-hW", path)
    entry = re.search(r"Entry point address:\s+(0x[0-9a-f]+)", header)
    assert entry is not None
    assert elf.entry == int(entry[1], 16)
    assert (elf.bits, elf.machine, elf.kind) == (64, 62, 2 if flags else 3)
    loads = re.findall(
        r"^  LOAD +(\w+) (\w+) \w+ (\w+) (\w+) ([RWE ]{3})", said("readelf", "-lW", path), re.M
    )
    flag = {" ": 0, "R": 4, "W": 2, "E": 1}
    assert elf.segments == [
        (*(int(number, 16) for number in numbers), sum(flag[letter] for letter in letters))
        for *numbers, letters in loads
    ]
    assert elf.segments


def test_functions_are_those_that_nm_lists(tmp_path: Path) -> None:
    path = compiled(tmp_path)
    rows = re.findall(r"^(\w+) (\w) (\S+)$", said("nm", path), re.M)
    # t and T are in code; a weak symbol (W) may be anything
    code = {(name, int(value, 16)) for value, kind, name in rows if kind in "Tt"}
    weak = {name for _, kind, name in rows if kind in "Ww"}
    found = {(each.name, each.address) for each in FileSymbols(path).functions}
    assert code <= found
    assert all(name in weak or name == ".plt" or name.endswith("@plt") for name, _ in found - code)


def test_linkage_table_stubs_have_the_addresses_that_objdump_prints(tmp_path: Path) -> None:
    for folder, *flags in (("lazy", "-Wl,-z,lazy"), ("now", "-Wl,-z,now"), ("fixed", "-no-pie")):
        where = tmp_path / folder
        where.mkdir()
        path = compiled(where, *flags)
        printed = re.findall(r"^(\w+) <(\S+@plt(-0x10)?)>:$", said("objdump", "-d", path), re.M)
        # the first entry has no function
        expected = {
            (".plt" if before else name, int(address, 16)) for address, name, before in printed
        }
        functions = FileSymbols(path).functions
        found = {(each.name, each.address) for each in functions if each.binding == "p"}
        assert found == expected
        assert found


def test_32_bit_elf_file_has_functions(tmp_path: Path) -> None:
    source = tmp_path / "f.s"
    source.write_text(".globl f\n.type f,@function\nf: ret\n.size f,.-f\n")
    out = tmp_path / "f.so"
    command = [tool("gcc"), "-m32", "-nostdlib", "-shared", "-o", str(out), str(source)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the compiler builds no 32-bit files")
    assert (core.ElfFile(out).bits, core.ElfFile(out).machine) == (32, 3)
    assert [(each.name, each.size) for each in FileSymbols(out).functions] == [("f", 1)]


def test_functions_without_size_reach_next(tmp_path: Path) -> None:
    symbols = FileSymbols(build_without_symbols(tmp_path))
    start, helper = symbols.functions[:2]
    assert (start.name, start.size, start.binding) == ("_start", 14, "g")
    assert (helper.name, helper.size, helper.offset) == ("helper", 1, start.offset + 14)
    assert symbols.find_function(start.offset + 13) == start
    assert symbols.find_function(helper.offset) == helper
    assert symbols.find_function(start.offset - 1) is None
    assert symbols.address(helper.offset) == helper.address


def test_stripped_file_keeps_linkage_table_stubs(tmp_path: Path) -> None:
    path = compiled(tmp_path)
    subprocess.run([tool("strip"), path], check=True)
    names = {each.name for each in FileSymbols(path).functions}
    assert "puts@plt" in names
    assert "main" not in names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an ELF file at offset 0x0"),
        (b"\x7fEL", "not an ELF file"),
        (b"#!/bin/sh\n", r"not an ELF file at offset 0x0 \(0x622f2123\)"),
        (b"\x7fELF\x02\x01\x01", "bad ELF header"),
        (b"\x7fELF\x03\x01\x01" + bytes(64), "not an ELF file"),
    ],
)
def test_non_elf_file_raises_image_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=message) as caught:
        core.ElfFile(path)
    assert caught.value.source == str(path)
    assert caught.value.offset == 0


def test_pipes_folders_and_missing_files_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, message in (
        (pipe, "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "no", "cannot be read"),
    ):
        with pytest.raises(ImageError, match=message):
            core.ElfFile(path)


def test_a_file_that_changes_between_header_and_symbols_is_refused(tmp_path: Path) -> None:
    path = build_without_symbols(tmp_path)
    elf = core.ElfFile(path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ImageError, match="changed since it was opened"):
        elf.symbols()


def test_corrupted_elf_gives_result_or_error(tmp_path: Path) -> None:
    """Nothing panics, whatever the bytes: a panic would not be an ImageError."""
    whole = build_without_symbols(tmp_path).read_bytes()
    path = tmp_path / "bad"
    variants = [
        *(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(len(whole))),
        *(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 3)),
        *(whole[:length] for length in range(0, len(whole), 7)),
    ]
    results = 0
    sources = set()
    for variant in variants:
        path.write_bytes(variant)
        try:
            symbols = FileSymbols(path)
            for function in symbols.functions:
                symbols.find_function(function.offset)
            results += 1
        except ImageError as error:
            sources.add(error.source)
    assert 0 < results < len(variants)
    assert sources == {str(path)}


def test_a_function_inside_another_owns_its_bytes(tmp_path: Path) -> None:
    source = tmp_path / "nested.s"
    source.write_text(
        ".globl outer\n.type outer,@function\nouter: nop;nop\n"
        ".type inner,@function\ninner: nop;nop;nop\n.size inner,.-inner\n"
        "nop;nop;nop\n.size outer,.-outer\n.type after,@function\nafter: ret\n.size after,.-after\n"
    )
    out = tmp_path / "nested.so"
    subprocess.run([tool("gcc"), "-shared", "-nostdlib", "-o", out, source], check=True)
    symbols = FileSymbols(out)
    (outer,) = symbols.find_by_name("outer")
    owners = [symbols.find_function(outer.offset + at) for at in range(10)]
    names = [owner.name if owner is not None else "" for owner in owners]
    assert names == ["outer"] * 2 + ["inner"] * 3 + ["outer"] * 3 + ["after", ""]


def test_segments_beyond_the_16_bit_header_count_are_read(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(elf_with_segments(150_000))
    segments = core.ElfFile(path).segments
    assert len(segments) == 150_000
    assert segments[-1] == (0, CODE_AT + 149_999, 1, 1, 5)
