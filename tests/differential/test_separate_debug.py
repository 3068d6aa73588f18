"""A library whose symbols are in a separate debug file: the names are those that perf prints."""

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


def built(folder: Path) -> Path:
    """A program; its library lib.so is stripped, with a debug link to lib.debug beside it."""
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


def names_of_perf(data: Path, library: Path) -> dict[int, str]:
    """By address in the library; without those that it has no name for."""
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


def names_of_ours(data: Path, capfd: pytest.CaptureFixture[str]) -> dict[int, str]:
    capfd.readouterr()
    assert main(["instructions", "--fields", "ip,sym", str(data)]) == 0
    rows = [line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines()]
    return {int(address, 16): name.split("+0x")[0] for address, name in rows}


def test_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exe, data, library = built(tmp_path), tmp_path / "data", tmp_path / "lib.so"
    record_to_end(start_recording(RecordRequest([str(exe)], output=data)))
    wanted = names_of_perf(data, library)
    assert {"hidden", "shown", "shapes::area<int, char>"} <= set(wanted.values())
    ours = names_of_ours(data, capfd)
    assert {address: ours[address] for address in wanted} == wanted
    (tmp_path / "lib.debug").unlink()  # that is where they come from
    assert "hidden" not in names_of_ours(data, capfd).values()
