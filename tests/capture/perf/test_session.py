"""`rtit record --backend perf` with a stand-in for perf: the arguments of perf, and the recordings
that result from what it does. PT hardware has not been tried.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rtit
from rtit.capture.backends import start_recording
from rtit.capture.perf.availability import PerfInstallation
from rtit.capture.request import RecordRequest, SizeLimits
from rtit.cli.main import main
from rtit.errors import RecordError, UsageError
from support.recordings import Recorder
from support.sysfs import MachineFactory, machine

__all__ = ["machine"]

ProgramBuilder = Callable[[str], Path]

# Options with a value, of those that `perf record` has (its --help).
STAND_IN = """\
import json, os, pathlib, shutil, signal, subprocess, sys
folder = pathlib.Path({folder!r})
words = sys.argv[1:]
if words == ["--version"]:
    print("perf version 6.1.192")
    sys.exit()
blocked = [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
aslr = open("/proc/self/personality").read()
given = {{"words": words, "blocked": blocked, "personality": int(aslr, 16), "cwd": os.getcwd()}}
if "--" not in words:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
(folder / "new").write_text(json.dumps(given))
(folder / "new").rename(folder / "arguments.json")
assert words[0] == "record"
output = words[words.index("-o") + 1]
ended = 0
if "--" in words:
    ended = subprocess.run(words[words.index("--") + 1 :]).returncode
    if os.environ.get("FAILS"):
        sys.exit("event syntax error")
else:
    signal.sigwait([signal.SIGTERM])
    ended = -signal.SIGTERM
shutil.copy(folder / "made.data", output)
if ended < 0:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.kill(os.getpid(), -ended)
sys.exit(ended)
"""


@pytest.fixture
def perf(
    machine: MachineFactory,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The folder of a perf that writes a recording of `returns`, on a machine that may trace."""
    machine(capabilities=1 << 38)
    folder = tmp_path / "perf"
    folder.mkdir()
    (folder / "made.data").symlink_to(record([program("returns")]).data)
    (folder / "perf.py").write_text(STAND_IN.format(folder=str(folder)))
    script = folder / "perf"
    script.write_text(
        f'#!/bin/sh\nexec {shlex.join([sys.executable, str(folder / "perf.py")])} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.chdir(tmp_path)
    return folder


def perf_arguments(perf: Path) -> list[str]:
    """Return the arguments of perf, without those that every recording has."""
    words: list[str] = json.loads((perf / "arguments.json").read_text())["words"]
    assert words[:4] == ["record", "-N", "-o", str(perf.parent / "perf.data")]
    return [word for word in words[4:] if word != "--kcore"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["-e", "intel_pt//u"]),
        (["-e", "intel_pt/cyc,mtc_period=3/"], ["-e", "intel_pt/cyc,mtc_period=3/"]),
        (["-e", "intel_pt//k", "-a", "-m", ",64M"], ["-e", "intel_pt//k", "-m", ",64M", "-a"]),
        (["--snapshot=64K"], ["-e", "intel_pt//u", "--snapshot=e65536"]),
        (["--max-size", "1M"], ["-e", "intel_pt//u", "--max-size=1048576B"]),
        (
            ["--perf-option=--aux-sample=8192", "--perf-option=-ebranch-misses:u"],
            ["-e", "intel_pt//u", "--aux-sample=8192", "-ebranch-misses:u"],
        ),
    ],
)
def test_options_become_arguments_of_perf(
    options: list[str], expected: list[str], perf: Path
) -> None:
    assert main(["record", "--backend", "perf", *options, "--", "/bin/true"]) == 0
    assert perf_arguments(perf) == [*expected, "--", "/bin/true"]


def test_filters_are_passed_as_file_offsets(perf: Path, program: ProgramBuilder) -> None:
    path = program("returns")
    assert main(["record", "--backend", "perf", "--filter", "filter main", "--", str(path)]) == 0
    words = perf_arguments(perf)
    (text,) = (word for word in words if word.startswith("filter "))
    assert words[words.index(text) - 1] == "--filter"
    symbol = (
        subprocess.run(["nm", "-S", path], capture_output=True, text=True, check=True)
        .stdout.split(" main\n")[0]
        .splitlines()[-1]
        .split()
    )
    assert text.partition("/")[2] == f"{int(symbol[1], 16):#x}@{path.resolve()}"


def test_real_perf_accepts_the_arguments(perf: Path) -> None:
    """Stock perf knows the options; it parses them all before it looks for the PMU."""
    real = next(
        (
            Path(each) / "perf"
            for each in os.environ["PATH"].split(":")[1:]
            if (Path(each) / "perf").exists()
        ),
        None,
    )
    if real is None:
        pytest.skip("perf (package linux-perf) is not installed")
    options = ["-e", "cpu-clock:u", "-m", "8,64K", "-a", "-C0", "-z", "-kmono"]
    words = ["--snapshot=e65536", "--max-size=1048576B", "-N", "-o", "/dev/null", *options]
    ended = subprocess.run(
        [real, "record", "--dry-run", *words, "--", "/bin/true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Usage" not in ended.stderr
    assert "nknown" not in ended.stderr


def test_summary_has_no_instruction_count(perf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["record", "--backend", "perf", "--json", "summary", "--", "/bin/echo", "hello"]) == 0
    )
    with rtit.Trace("perf.data") as trace:
        size = trace.streams[0].size
    said = capfd.readouterr()
    assert said.out == "hello\n"
    line = said.err.splitlines()[-1]
    assert line.startswith(
        f"[ rtit record: {size + -size % 8:,} bytes of PT in perf.data; perf: as requested"
    )
    found = json.loads(Path("summary").read_text())
    assert found["backend"] == "perf"
    assert found["pt_bytes"] == size + -size % 8
    uncounted = ("executed_instructions", "executed_branches", "threads", "traced_instructions")
    assert [found[name] for name in uncounted] == [None] * 4


@pytest.mark.parametrize(
    ("version", "has"), [("5.4.282", False), ("5.5", True), ("6.1.192", True), ("next", True)]
)
def test_kcore_is_passed_if_perf_supports_it(version: str, has: bool) -> None:
    """perf record --kcore: Linux 5.5 (release notes of perf tools)."""
    assert PerfInstallation(Path("perf"), version, None).has_kcore is has


@pytest.mark.parametrize(
    ("script", "code", "ended"), [("exit 3", 3, "exit code 3"), ("kill -9 $$", 137, "SIGKILL")]
)
def test_exit_code_is_that_of_the_program(
    script: str, code: int, ended: str, perf: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "--backend", "perf", "--", "/bin/sh", "-c", script]) == code
    assert ended in capfd.readouterr().err


def test_older_recording_is_renamed(perf: Path) -> None:
    Path("perf.data").write_text("older")
    assert main(["record", "-q", "--backend", "perf", "--", "/bin/true"]) == 0
    assert Path("perf.data.old").read_text() == "older"


def test_failing_perf_raises_record_error(
    perf: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAILS", "yes")
    assert main(["record", "--backend", "perf", "--", "/bin/true"]) == 125
    assert "perf record failed (exit code 1), and left no trace" in capfd.readouterr().err


def test_recording_without_trace_raises_record_error(perf: Path, tmp_path: Path) -> None:
    made = perf / "made.data"
    made.unlink()
    from rtit.perfdata import TimeConversion, Writer

    with Writer(
        tmp_path / "with",
        config=1,
        cpuid="",
        cmdline=[],
        time=TimeConversion(0, 1, 0),
        tsc_ctc=(0, 0),
        max_nonturbo_ratio=0,
    ):
        pass
    # A file of another event: none of its records is an AUXTRACE_INFO.
    content = (tmp_path / "with").read_bytes()
    made.write_bytes(content.replace(b"\x46\0\0\0\0\0", b"\x45\0\0\0\0\0"))
    with pytest.raises(RecordError, match="traced nothing"):
        rtit.record(["/bin/true"], backend="perf")


def test_missing_program_is_reported_before_perf_starts(perf: Path) -> None:
    with pytest.raises(RecordError) as caught:
        rtit.record(["nosuchprogram"], backend="perf")
    assert caught.value.exit_code == 127
    assert not (perf / "arguments.json").exists()


def test_attached_recording_ends_by_signal(perf: Path) -> None:
    request = RecordRequest(
        pids=[os.getpid()], backend="perf", size_limits=SizeLimits(snapshot=1 << 20)
    )
    with start_recording(request) as session:
        while not (perf / "arguments.json").exists():
            assert session.step(0.05)
        assert session.totals.pt_bytes == 0
        session.kill()
        while session.step(0.05):
            pass
        recording = session.finish()
    assert perf_arguments(perf)[-2:] == ["-p", str(os.getpid())]
    assert recording.exit_code == 0
    assert recording.pt_bytes > 0


def test_program_starts_with_its_signal_mask_and_aslr_setting(perf: Path, tmp_path: Path) -> None:
    request = RecordRequest(
        ["/bin/true"],
        backend="perf",
        aslr=False,
        cwd=tmp_path / "perf",
        blocked=[signal.SIGUSR1],
        output="perf.data",
    )
    with start_recording(request) as session:
        while session.step(0.05):
            pass
    found = json.loads((perf / "arguments.json").read_text())
    assert found["blocked"] == [signal.SIGUSR1]
    assert found["personality"] & 0x0040000
    assert found["cwd"] == str(tmp_path / "perf")
    assert (tmp_path / "perf.data").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--truth", "truth"],
        ["--start-at", "main"],
        ["--cpi", "2"],
        ["--events", "events"],
        ["-e", "intel_pt/ptw/u"],
        ["--perf-option=-oother"],
        ["--perf-option=--output=other"],
        ["--perf-option=0-3"],
        ["--perf-option=--"],
    ],
)
def test_options_of_software_units_are_rejected(
    options: list[str], perf: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "--backend", "perf", *options, "--", "/bin/true"]) == 2
    assert not (perf / "arguments.json").exists()


def test_hardware_options_need_the_perf_back_end() -> None:
    for options in ({"all_cpus": True}, {"mmap_pages": "8"}, {"perf_options": ["-z"]}):
        with pytest.raises(UsageError, match="need --backend perf"):
            RecordRequest(["/bin/true"], **options)
    with pytest.raises(UsageError, match="includes the kernel"):
        RecordRequest(["/bin/true"], event="intel_pt//")
