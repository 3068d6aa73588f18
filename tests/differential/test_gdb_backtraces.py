"""The reported function and source line of a crash are those of gdb's backtrace."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from programs.build import SOURCES, compiled
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from support.recordings import record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]
FRAME = re.compile(r"#0 +(?:0x[0-9a-f]+ in )?(\S+) \(.*\) at (.+):(\d+)$", re.MULTILINE)
SIGNAL = re.compile(r"received signal (SIG\w+),")
PC = re.compile(r"^pc = (0x[0-9a-f]+)$", re.MULTILINE)
CALLER = re.compile(r"#1 +(?:0x[0-9a-f]+ in )?(\S+) \(", re.MULTILINE)


class Backtrace(NamedTuple):
    """The backtrace of the thread that crashed; `caller` is "" if there is none."""

    signal: str
    ip: int
    function: str
    file: str
    line: int
    caller: str


def backtrace_from_gdb(exe: Path, folder: Path) -> Backtrace:
    """Return the backtrace that gdb prints of a separate run."""
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("gdb is not installed")
    commands = ["set startup-with-shell off", "run", 'printf "pc = %p\\n", $pc', "bt"]
    words = [word for command in commands for word in ("-ex", command)]
    ran = subprocess.run(
        [gdb, "-nx", "-batch", *words, str(exe)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if "ptrace" in ran.stderr:
        pytest.skip(f"gdb cannot run programs here: {ran.stderr.strip()}")
    frame, signal, pc = (regex.search(ran.stdout) for regex in (FRAME, SIGNAL, PC))
    assert frame is not None, ran.stdout + ran.stderr
    assert signal is not None, ran.stdout
    assert pc is not None, ran.stdout
    caller = CALLER.search(ran.stdout)
    return Backtrace(
        signal[1], int(pc[1], 16), frame[1], frame[2], int(frame[3]), caller[1] if caller else ""
    )


def build_with_compressed_dwarf(folder: Path) -> Path:
    """Build crash_late with its DWARF in compressed sections."""
    flags = ["-g", "-O1", "-gz=zlib", "-static", "-nostdlib", "-ffreestanding", "-fno-pie"]
    flags += ["-no-pie", "-fno-stack-protector"]
    source = str(SOURCES / "crash_late.c")
    return compiled("crash_late_gz", [source], language="c", flags=flags, directory=folder)


@pytest.mark.parametrize("name", ["crash_late", "crash_thread", "crash_ud2", "compressed"])
@pytest.mark.parametrize("backend", ["qemu", "ptrace"])
def test_reported_fault_equals_gdb_backtrace(
    name: str,
    backend: str,
    program: ProgramBuilder,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    require_backend(backend)
    exe = build_with_compressed_dwarf(tmp_path) if name == "compressed" else program(name)
    expected = backtrace_from_gdb(exe, tmp_path)
    data = tmp_path / "data"
    record_to_end(start_recording(RecordRequest([str(exe)], backend=backend, output=data)))
    capfd.readouterr()
    main(["report", str(data), "--json"])
    report = json.loads(capfd.readouterr().out)
    [fault] = report["faults"]
    [ended] = report["endings"]
    assert (fault["pid"], fault["tid"]) == (ended["pid"], ended["tid"])
    assert {key: ended["fault"][key] for key in ("ip", "address")} == {
        key: fault[key] for key in ("ip", "address")
    }
    found = (fault["name"], fault["ip"], fault["function"], fault["file"], fault["line"])
    assert found == expected[:5]
    call = fault["call_stack"][0]
    if expected.caller:
        assert (call["from"].split("+")[0], call["to"]) == (expected.caller, expected.function)
    if name == "crash_ud2":  # the last call is the one that the backtrace ends with
        assert fault["last_calls"][-1] == call
    main(["report", str(data)])
    text = capfd.readouterr().out
    location = f"({Path(expected.file).name}:{expected.line})"
    assert f"{expected.signal} at address" in text
    assert re.search(rf" in {expected.function}(\+0x\w+)? {re.escape(location)}: ", text)
    options = ["--fields", "ip,sym,asm", "--tail", "1", "--tid", str(fault["tid"])]
    main(["instructions", *options, str(data)])
    line = capfd.readouterr().out
    assert int(line.split()[0], 16) == expected.ip
    assert f"<- {expected.signal} at address" in line
    assert line.rstrip().endswith(f"{Path(expected.file).name}:{expected.line}")
