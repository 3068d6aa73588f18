"""What counts, covers, compares and debugs says of recordings that lack something: a sentence, and
the exit code; and nothing that could be told is lost.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import SOURCES
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.errors import UnsupportedError
from rtit.gdb.debugger import find_gdb
from rtit.trace import Trace
from support.recordings import record_to_end, require_backend

Make = Callable[[Path], Path]

TOOLS = ("bolt", "autofdo", "llvm", "pprof", "callgrind", "perf")
FORMATS = ("text", "html", "lcov", "cobertura", "drcov", "afl")
VERBS = {
    **{f"profile {tool}": ["profile", "--for", tool, "-o", "out"] for tool in TOOLS},
    **{f"coverage {kind}": ["coverage", "--format", kind, "-o", "out"] for kind in FORMATS},
    "stat": ["stat", "--per", "function", "-o", "out"],
    "edges": ["edges"],
    "diff": ["diff"],
    "gdb": ["gdb", "--gdb", "gdb -nx", "--batch", "--ex", "info record"],
}
UNNAMED = {f"profile {tool}" for tool in TOOLS} | {"stat"}
"""Verbs that say that functions have no names."""
SOURCES_WANTED = {"coverage html", "coverage lcov", "coverage cobertura"}
NO_SOURCE = "no file has lines of source in its DWARF"


def built(folder: Path, *flags: str) -> Path:
    if shutil.which("gcc") is None or shutil.which("strip") is None:
        pytest.skip("gcc or strip is not installed")
    folder.mkdir(exist_ok=True)
    program = folder / "prog"
    words = ["gcc", "-O1", "-static", *flags, "-o", str(program), str(SOURCES / "builds.c")]
    subprocess.run(words, check=True, cwd=folder)
    return program


def recorded(program: Path, event: str = "intel_pt//u") -> Path:
    require_backend("qemu")
    data = program.with_name("data")
    record_to_end(
        start_recording(RecordRequest([str(program)], backend="qemu", output=data, event=event))
    )
    return data


def stripped(folder: Path) -> Path:
    program = built(folder, "-g")
    subprocess.run(["strip", str(program)], check=True)
    return recorded(program)


def without_dwarf(folder: Path) -> Path:
    return recorded(built(folder, "-g0"))


def dwarf(*flags: str) -> Make:
    return lambda folder: recorded(built(folder, *flags))


def changed(folder: Path) -> Path:
    data = recorded(built(folder, "-g"))
    built(folder, "-g", "-DMORE")
    return data


def gone(folder: Path) -> Path:
    program = built(folder, "-g")
    data = recorded(program)
    program.unlink()
    return data


def with_a_gap(folder: Path) -> Path:
    data = recorded(built(folder, "-g"), "intel_pt/psb_period=0/u")
    with Trace(data) as trace:
        stream = trace.streams[0]
        pieces = stream.source.pieces  # type: ignore[attr-defined]
        points = [point.offset for batch in stream.sync_points() for point in batch]
    # a short stream may have the PSB at its start alone
    wrong = points[len(points) // 2] - 100 if len(points) > 1 else stream.size // 2
    [piece] = [each for each in pieces if 0 <= wrong - each.aux_offset < each.size - 8]
    place = piece.file_offset + wrong - piece.aux_offset
    content = bytearray(data.read_bytes())
    content[place : place + 8] = bytes.fromhex("02ff02ff02ff02ff")  # no packets
    data.write_bytes(content)
    return data


def cut(folder: Path) -> Path:
    data = recorded(built(folder, "-g"))
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    return data


SITUATIONS: dict[str, Make] = {
    "stripped": stripped,
    "without DWARF": without_dwarf,
    "DWARF 4": dwarf("-gdwarf-4"),
    "DWARF 5": dwarf("-gdwarf-5"),
    "split DWARF": dwarf("-g", "-gsplit-dwarf"),
    "changed": changed,
    "gone": gone,
    "a gap": with_a_gap,
    "cut": cut,
}
MISSING = {
    "changed": ("has build id", "no code is known at"),
    "gone": ("prog does not exist", "no code is known at"),
    "a gap": ("not decoded exactly", "not be decoded exactly", "is missing in", "lost"),
    "cut": "incomplete",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The recording of a situation, each made once."""
    known: dict[str, Path] = {}

    def recording(name: str) -> Path:
        if name not in known:
            folder = tmp_path_factory.mktemp(name.replace(" ", "-"), numbered=False)
            known[name] = SITUATIONS[name](folder)
        return known[name]

    return recording


def told(
    words: list[str], data: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """The exit code, and what stands on standard output and error, one sentence a line."""
    if words[0] == "gdb":
        try:
            find_gdb()
        except UnsupportedError as error:
            pytest.skip(str(error))
    files = [str(data)] * (2 if words[0] == "diff" else 1)
    with contextlib.chdir(folder):
        code = main([*words, *files])
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("verb", VERBS)
def test_what_is_missing_is_told(
    verb: str,
    situation: str,
    made: Callable[[str], Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    code, out, err = told(VERBS[verb], made(situation), tmp_path, capfd)
    missing = MISSING.get(situation)
    # What half of a file has need not be enough for a debugger.
    unknown = 1 if verb == "gdb" and situation == "cut" else 3
    assert code == (unknown if missing else 0), err
    where = out + err if verb == "diff" else err
    wanted = (missing,) if isinstance(missing, str) else missing or ("",)
    assert any(each in where for each in wanted), where
    assert ("has no symbols" in err) == (situation == "stripped" and verb in UNNAMED)
    has_source = situation.startswith(("DWARF", "split", "a gap"))
    if verb in SOURCES_WANTED:
        assert (NO_SOURCE in err) != has_source
    nothing = situation in ("changed", "gone", "cut")
    if verb.startswith(("coverage", "stat")) or (verb.startswith("profile") and not nothing):
        assert (tmp_path / "out").exists()
    lines = [line for line in err.splitlines() if line.startswith("rtit ")]
    assert len({*lines}) == len(lines)
    assert len(lines) < 5 or verb == "edges"  # which tells of each gap


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("content", [b"", b"nothing that anybody knows", b"\x7fELF" + bytes(200)])
def test_an_unknown_format(
    verb: str, content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.write_bytes(content)
    code, out, err = told(VERBS[verb], data, tmp_path, capfd)
    assert code == 1
    assert out == ""
    assert err.startswith(f"rtit {verb.split(maxsplit=1)[0]}: {data}")
    assert err.count("\n") <= 2
    assert not (tmp_path / "out").exists()
