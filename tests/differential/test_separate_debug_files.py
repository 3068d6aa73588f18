"""Symbol names from a separate debug file are those that perf prints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from differential.oracles import perf
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from support.recordings import record_to_end

LIBRARY = """
namespace shapes {
template <typename A, typename B> __attribute__((noinline)) int area(A a, B b) { return a * b; }
template int area<int, char>(int, char);
}
static __attribute__((noinline, used)) int hidden(int x) { return x + 41; }
extern "C" int shown(int x) { return hidden(x) + shapes::area<int, char>(x, 2); }
"""
PROGRAM = 'extern "C" int shown(int); int main(int argc, char **) { return shown(argc) & 1; }\n'


def build_program(folder: Path) -> Path:
    """Build a program with a stripped library lib.so, which has a debug link to lib.debug."""
    for name in ("g++", "objcopy"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    (folder / "l.cpp").write_text(LIBRARY)
    (folder / "m.cpp").write_text(PROGRAM)
    for command in (
        "g++ -O1 -g -shared -fPIC -o whole.so l.cpp",
        "objcopy --only-keep-debug whole.so lib.debug",
        "objcopy --strip-all --add-gnu-debuglink=lib.debug whole.so lib.so",
        f"g++ -o m m.cpp {folder}/lib.so",
    ):
        subprocess.run(command.split(), cwd=folder, check=True)
    return folder / "m"


def names_from_perf(data: Path, library: Path) -> dict[int, str]:
    """Return perf's names by address in the library, without unknown ones."""
    try:
        text = perf.script(data, ["--itrace=i0ns", "-F", "ip,sym,dso"])
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    found = {}
    for line in text.splitlines():
        if line.endswith(f" ({library})"):
            address, name = line.removesuffix(f" ({library})").split(maxsplit=1)
            found[int(address, 16)] = name
    return {address: name for address, name in found.items() if name != "[unknown]"}


def names_from_rtit(data: Path, capfd: pytest.CaptureFixture[str]) -> dict[int, str]:
    capfd.readouterr()
    assert main(["instructions", "--fields", "ip,sym", str(data)]) == 0
    rows = [line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines()]
    return {int(address, 16): name.split("+0x")[0] for address, name in rows}


def test_names_from_separate_debug_file_equal_those_of_perf(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exe, data, library = build_program(tmp_path), tmp_path / "data", tmp_path / "lib.so"
    record_to_end(start_recording(RecordRequest([str(exe)], output=data)))
    expected = names_from_perf(data, library)
    assert {"hidden", "shown", "shapes::area<int, char>"} <= set(expected.values())
    ours = names_from_rtit(data, capfd)
    # perf lets `_init` reach over the head of the linkage table, which is code of no function.
    of_table = {address for address in expected if ours[address] == ".plt"}
    assert {expected[address] for address in of_table} <= {"_init"}
    assert {address: ours[address] for address in expected.keys() - of_table} == {
        address: name for address, name in expected.items() if address not in of_table
    }
    (tmp_path / "lib.debug").unlink()  # the names come from this file
    assert "hidden" not in names_from_rtit(data, capfd).values()
