"""Commands on recordings that lack something print one line and exit with 3, and lose no
results.
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

MakeRecording = Callable[[Path], Path]

TOOLS = ("bolt", "autofdo", "llvm", "pprof", "callgrind", "perf")
FORMATS = ("text", "html", "lcov", "cobertura", "drcov", "afl")
COMMAND_LINES = {
    **{f"profile {tool}": ["profile", "--for", tool, "-o", "out"] for tool in TOOLS},
    **{f"coverage {kind}": ["coverage", "--format", kind, "-o", "out"] for kind in FORMATS},
    "stat": ["stat", "--per", "function", "-o", "out"],
    "edges": ["edges"],
    "calls": ["calls"],
    "calls flamegraph": ["calls", "--flamegraph", "-o", "out"],
    "timeline": ["timeline", "-o", "out"],
    "diff": ["diff"],
    "gdb": ["gdb", "--gdb", "gdb -nx", "--batch", "--ex", "info record"],
}
REPORTS_MISSING_SYMBOLS = {f"profile {tool}" for tool in TOOLS} | {"stat"}
"""Commands that report a program without symbols."""
REPORTS_EACH_GAP = {"edges", "calls", "calls flamegraph", "timeline"}
NEEDS_SOURCE_LINES = {"coverage html", "coverage lcov", "coverage cobertura"}
NO_SOURCE = "prog has no debug information: compile with -g to see lines"
NO_CODE = "no code with debug information ran"


def build_program(folder: Path, *flags: str) -> Path:
    if shutil.which("gcc") is None or shutil.which("strip") is None:
        pytest.skip("gcc or strip is not installed")
    folder.mkdir(exist_ok=True)
    program = folder / "prog"
    words = ["gcc", "-O1", "-static", *flags, "-o", str(program), str(SOURCES / "builds.c")]
    subprocess.run(words, check=True, cwd=folder)
    return program


def record_program(program: Path, event: str = "intel_pt//u") -> Path:
    require_backend("qemu")
    data = program.with_name("data")
    record_to_end(
        start_recording(RecordRequest([str(program)], backend="qemu", output=data, event=event))
    )
    return data


def record_stripped(folder: Path) -> Path:
    program = build_program(folder, "-g")
    subprocess.run(["strip", str(program)], check=True)
    return record_program(program)


def record_without_dwarf(folder: Path) -> Path:
    return record_program(build_program(folder, "-g0"))


def record_with_dwarf(*flags: str) -> MakeRecording:
    return lambda folder: record_program(build_program(folder, *flags))


def record_changed_program(folder: Path) -> Path:
    data = record_program(build_program(folder, "-g"))
    build_program(folder, "-g", "-DMORE")
    return data


def record_deleted_program(folder: Path) -> Path:
    program = build_program(folder, "-g")
    data = record_program(program)
    program.unlink()
    return data


def record_with_a_gap(folder: Path) -> Path:
    data = record_program(build_program(folder, "-g"), "intel_pt/psb_period=0/u")
    with Trace(data) as trace:
        stream = trace.streams[0]
        pieces = stream.source.pieces  # type: ignore[attr-defined]
        sync_offsets = [point.offset for batch in stream.sync_points() for point in batch]
    # a short stream may have the PSB at its start alone
    wrong = (
        sync_offsets[len(sync_offsets) // 2] - 100 if len(sync_offsets) > 1 else stream.size // 2
    )
    [piece] = [each for each in pieces if 0 <= wrong - each.aux_offset < each.size - 8]
    file_offset = piece.file_offset + wrong - piece.aux_offset
    content = bytearray(data.read_bytes())
    content[file_offset : file_offset + 8] = bytes.fromhex("02ff02ff02ff02ff")  # no packets
    data.write_bytes(content)
    return data


def record_truncated(folder: Path) -> Path:
    data = record_program(build_program(folder, "-g"))
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    return data


SITUATIONS: dict[str, MakeRecording] = {
    "stripped": record_stripped,
    "without DWARF": record_without_dwarf,
    "DWARF 4": record_with_dwarf("-gdwarf-4"),
    "DWARF 5": record_with_dwarf("-gdwarf-5"),
    "split DWARF": record_with_dwarf("-g", "-gsplit-dwarf"),
    "changed": record_changed_program,
    "gone": record_deleted_program,
    "a gap": record_with_a_gap,
    "cut": record_truncated,
}
MISSING = {
    "changed": ("has build id", "no code is known at"),
    "gone": ("prog: the file does not exist", "no code is known at"),
    "a gap": ("not decoded exactly", "not be decoded exactly", "is missing in", "lost"),
    "cut": "incomplete",
}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes the recording of a situation, once each."""
    known: dict[str, Path] = {}

    def recording(name: str) -> Path:
        if name not in known:
            folder = tmp_path_factory.mktemp(name.replace(" ", "-"), numbered=False)
            known[name] = SITUATIONS[name](folder)
        return known[name]

    return recording


def run_command(
    words: list[str], data: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Return the exit code, standard output and standard error of a command."""
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
@pytest.mark.parametrize("command", COMMAND_LINES)
def test_missing_data_is_reported_with_exit_code_3(
    command: str,
    situation: str,
    recordings: Callable[[str], Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run_command(COMMAND_LINES[command], recordings(situation), tmp_path, capfd)
    missing = MISSING.get(situation)
    # Half of a file may be too little for a debugger.
    incomplete_code = 1 if command == "gdb" and situation == "cut" else 3
    assert code == (incomplete_code if missing else 0), err
    where = out + err if command == "diff" else err
    expected = (missing,) if isinstance(missing, str) else missing or ("",)
    assert any(each in where for each in expected), where
    assert ("has no symbols" in err) == (
        situation == "stripped" and command in REPORTS_MISSING_SYMBOLS
    )
    nothing = situation in ("changed", "gone", "cut")
    has_source = situation.startswith(("DWARF", "split", "a gap"))
    if command in NEEDS_SOURCE_LINES:
        assert ((NO_CODE if nothing else NO_SOURCE) in err) != has_source
    if command.startswith(("coverage", "stat")) or (command.startswith("profile") and not nothing):
        assert (tmp_path / "out").exists()
    lines = [line for line in err.splitlines() if line.startswith("rtit ")]
    assert len({*lines}) == len(lines)
    assert len(lines) < 5 or command in REPORTS_EACH_GAP


@pytest.mark.parametrize("command", COMMAND_LINES)
@pytest.mark.parametrize("content", [b"", b"nothing that anybody knows", b"\x7fELF" + bytes(200)])
def test_unknown_format_is_an_error(
    command: str, content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.write_bytes(content)
    code, out, err = run_command(COMMAND_LINES[command], data, tmp_path, capfd)
    assert code == 1
    assert out == ""
    assert err.startswith(f"rtit {command.split(maxsplit=1)[0]}: {data}")
    assert err.count("\n") <= 2
    assert not (tmp_path / "out").exists()
