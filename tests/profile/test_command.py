"""`rtit profile`: selected binaries, reported losses, refused options."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.profile.builder import build_profile
from rtit.trace import Trace
from rtit.views.statistics import compute_statistics
from support.profiles import ProfiledProgram
from support.recordings import Recorder, record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]


def test_dso_all_writes_a_file_per_binary(profiled: ProfiledProgram, tmp_path: Path) -> None:
    words = ["profile", str(profiled.data), "--for", "llvm", "-o", str(tmp_path / "out")]
    assert main([*words, "--dso", "all"]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert {f"out.{profiled.program.name}", "out.libc.so.6"} <= names
    assert main([*words, "--dso", "libc.so.6"]) == 0
    assert (tmp_path / "out").read_text() == (tmp_path / "out.libc.so.6").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--for", "bolt", "--dso", "nothing"],
            "no code ran in a file named nothing; code ran in: ",
        ),
        (["--for", "bolt", "--dso", "all"], "binaries need one output file each: give -o FILE"),
        (["--for", "perf", "--dso", "all"], "--for perf always writes all binaries"),
    ],
)
def test_unusable_options_are_refused(
    options: list[str], says: str, profiled: ProfiledProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", str(profiled.data), *options]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert says in found.err.splitlines()[0]


def test_unknown_format_is_a_usage_error(
    profiled: ProfiledProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["profile", str(profiled.data), "--for", "nobody"])
    assert "invalid choice: 'nobody' (choose from" in capsys.readouterr().err


def test_programs_at_equal_addresses_are_counted_separately(tmp_path: Path) -> None:
    """QEMU loads every program at one address, so time decides which program ran.

    `compute_statistics` counts instructions by file independently.
    """
    require_backend("qemu")
    data = tmp_path / "perf.data"
    argv = ["/bin/sh", "-c", "exec /bin/echo one"]
    record_to_end(start_recording(RecordRequest(argv, backend="qemu", output=data)))
    with Trace(data) as trace:
        found = build_profile(trace, trace.streams)
        by_file: Counter[str] = Counter()
        for (_name, path), count in compute_statistics(trace, trace.streams).functions.items():
            by_file[path] += count
    ours: Counter[str] = Counter()
    for binary in found.binaries:
        ours[binary.path] += binary.executed_instructions
    assert found.losses.changed_code == 0
    assert ours == Counter({path: by_file[path] for path in ours})
    assert {Path(path).name for path in ours} >= {"dash", "echo"} or len(ours) >= 4
    assert ours.total() + found.losses.no_file == found.instructions == by_file.total()


def test_missing_file_is_reported(
    profiled: ProfiledProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the program's file, its code and its path are unknown."""
    gone = f"{profiled.program}={tmp_path / 'gone'}"
    words = ["profile", str(profiled.data), "--for", "llvm", "--map", gone]
    assert main([*words, "--dso", "libc.so.6"]) == 3
    said = capsys.readouterr().err
    assert "could not be decoded exactly" in said
    assert f"missing: {profiled.program}: " in said


def test_code_in_no_file_is_reported(
    program: ProgramBuilder, record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    data = record([program("self_modify")]).data
    assert main(["profile", str(data), "--for", "bolt"]) == 0
    assert " instructions ran in no file (JIT code, the vdso)" in capsys.readouterr().err


def test_size_of_perf_script_is_printed_before(
    profiled: ProfiledProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    """Addresses of the program have 10 digits under QEMU, those of libraries 12."""
    size = profiled.written("perf").stat().st_size
    printed = capsys.readouterr().err.splitlines()[0]
    found = re.fullmatch(r"\[ rtit profile: about ([\d.]+) MB of text for [\d,]+ .*", printed)
    assert found, printed
    assert size / 1e6 <= float(found[1]) + 0.1 <= 1.2 * size / 1e6 + 0.2
