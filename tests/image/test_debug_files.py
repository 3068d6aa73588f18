"""Symbols of stripped files from their separate debug files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rtit.capture.filters import parse_filters
from rtit.image import FileSymbols
from rtit.image.debug_files import find_debug_file
from rtit.image.mapped_files import Files

core = pytest.importorskip("rtit._core", reason="the native module is not built")

SOURCE = """
namespace shapes {
template <typename A, typename B> __attribute__((noinline)) int area(A a, B b) { return a * b; }
template int area<int, char>(int, char);
}
static __attribute__((noinline, used)) int hidden(int x) { return x + 41; }
extern "C" int shown(int x) { return hidden(x) + shapes::area<int, char>(x, 2); }
"""


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A stripped library with a debug link, a folder of its own; what it was is in whole.so."""
    for name in ("g++", "objcopy", "nm"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    return made(tmp_path)


def made(folder: Path, *flags: str) -> Path:
    (folder / "l.cpp").write_text(SOURCE)
    whole, library = folder / "whole.so", folder / "lib.so"
    run("g++", "-O1", "-g", "-shared", "-fPIC", *flags, "-o", whole, folder / "l.cpp")
    run("objcopy", "--only-keep-debug", whole, folder / "lib.debug")
    run("objcopy", "--strip-all", f"--add-gnu-debuglink={folder / 'lib.debug'}", whole, library)
    return library


def hidden(whole: Path) -> int:
    rows = [line.split() for line in run("nm", whole).splitlines()]
    return next(int(row[0], 16) for row in rows if row[-1] == "_ZL6hiddeni")


def found(library: Path, *, symfs: str | None = None) -> list[tuple[str, int]]:
    symbols = Files(symfs=symfs).symbols(str(library))
    assert symbols is not None
    return [(each.name, each.address) for each in symbols.functions]


@pytest.mark.parametrize("location", ["lib.debug", ".debug/lib.debug"])
def test_debug_file_is_found_by_debug_link(library: Path, location: str) -> None:
    target = library.parent / location
    target.parent.mkdir(exist_ok=True)
    shutil.move(library.parent / "lib.debug", target)
    whole = library.with_name("whole.so")
    assert ("_ZL6hiddeni", hidden(whole)) in found(library)
    named = {name for name, _ in found(library)}
    assert named == {each.name for each in FileSymbols(whole).functions}
    target.unlink()
    assert "_ZL6hiddeni" not in {name for name, _ in found(library)}


def test_debug_file_is_found_by_build_id(library: Path, tmp_path: Path) -> None:
    build_id = core.ElfFile(library).build_id
    if build_id is None:
        pytest.skip("the compiler gives no build ids")
    name = build_id.hex()
    target = tmp_path / f"root/usr/lib/debug/.build-id/{name[:2]}/{name[2:]}.debug"
    target.parent.mkdir(parents=True)
    shutil.move(library.parent / "lib.debug", target)
    location = tmp_path / "root" / "recorded.so"
    shutil.copy(library, location)
    symbols = Files(symfs=tmp_path / "root").symbols("/recorded.so")
    assert symbols is not None
    assert "_ZL6hiddeni" in symbols.names


def test_debug_file_of_other_program_is_ignored(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    library = made(tmp_path, "-Wl,--build-id=none")
    assert "_ZL6hiddeni" in {name for name, _ in found(library)}
    debug = tmp_path / "lib.debug"
    data = bytearray(debug.read_bytes())
    data[-1] ^= 1  # the CRC of the link is another one now
    debug.write_bytes(data)
    assert "_ZL6hiddeni" not in {name for name, _ in found(library)}


@pytest.mark.parametrize("bad", [b"", b"\x7fELF", b"no file of this kind"])
def test_broken_debug_file_is_ignored(library: Path, bad: bytes) -> None:
    (library.parent / "lib.debug").write_bytes(bad)
    assert "shown" in {name for name, _ in found(library)}


def test_debug_link_to_itself_is_ignored(library: Path) -> None:
    (library.parent / "lib.debug").unlink()
    (library.parent / "lib.debug").symlink_to(library)
    elf = core.ElfFile(library)
    assert find_debug_file(elf, str(library), None) is None


def test_address_filter_accepts_printed_names(library: Path) -> None:
    address = hidden(library.with_name("whole.so"))
    offset = next(
        each.offset
        for each in FileSymbols(library.with_name("whole.so")).functions
        if each.address == address
    )
    for name in ("_ZL6hiddeni", "hidden"):
        [wanted] = parse_filters(f"filter {name} @ {library}")
        assert wanted.offset == offset
    [area] = parse_filters(f'filter "shapes::area<int, char>" @ {library}')
    [same] = parse_filters(f"filter _ZN6shapes4areaIicEEiT_T0_ @ {library}")
    assert area == same
