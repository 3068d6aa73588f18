"""Recordings in the installed gdb."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import rtit
from rtit.cli.main import main
from rtit.gdb.debugger import find_gdb
from support.gdb import (
    BREAKPOINT_HIT,
    RECORDED_LINE,
    ProgramBuilder,
    caller_names,
    executed_instructions,
    record_program,
    run_gdb,
)
from support.recordings import RTIT

pytestmark = pytest.mark.usefixtures("gdb")


@pytest.mark.parametrize("form", ["pt", "bts"])
@pytest.mark.parametrize("backend", ["auto", "ptrace"])
def test_crash_has_all_instructions_and_its_source_line(
    program: ProgramBuilder, tmp_path: Path, backend: str, form: str
) -> None:
    exe = program("crash_late")
    truth = tmp_path / "truth"
    data = record_program(tmp_path, exe, backend=backend, truth=truth)
    session = run_gdb(data, "info record", "bt", options=("--format", form))
    assert session.recorded == (executed_instructions(truth), 0)
    assert session.frames == ["main"]
    assert re.search(r"crash_late.c:\d+\n\d+\s+\*nowhere = value;", session.out)
    whole = f"all {executed_instructions(truth):,} instructions, to SIGSEGV at address 0x0"
    assert whole in session.err
    assert session.status == 0


@pytest.mark.parametrize("command", ["", "''", "'"])
def test_invalid_gdb_command_is_a_usage_error(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gdb", "no such file", "--gdb", command]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"rtit gdb: --gdb {command!r}")
    assert said.count("\n") == 2  # with the usage


def test_breakpoint_is_hit_in_reverse(program: ProgramBuilder, tmp_path: Path) -> None:
    """main calls `some` fifty times, and each calls through a pointer thirty times."""
    data = record_program(tmp_path, program("crash_late"))
    back = ["reverse-continue"] * 52
    session = run_gdb(data, "break some", *back, "bt")
    assert len(BREAKPOINT_HIT.findall(session.out)) == 50
    assert "No more reverse-execution history" in session.out
    session = run_gdb(data, "break some", "reverse-continue", "bt")
    assert session.frames == ["some", "main"]
    session = run_gdb(data, "tbreak some", "reverse-continue", "delete", "reverse-finish", "bt")
    assert session.frames == ["main"]
    assert "value = some(value);" in session.out


def test_pie_with_shared_object_has_frames_of_both(shared: Path) -> None:
    session = run_gdb(shared, "info record", "bt", "info sharedlibrary", "up 4", "info line")
    assert session.recorded == (executed_instructions(shared.with_name("truth")), 0)
    # after main come the functions of the C library that called it
    assert session.frames[:5] == ["deeper"] * 4 + ["main"]
    assert "return (sum + deeper((int *)16, argc + 2)) & 7;" in session.out
    assert re.search(r"Yes .*/shared_part-", session.out)
    session = run_gdb(shared, "break scale", *["reverse-continue"] * 10, "bt")
    assert len(BREAKPOINT_HIT.findall(session.out)) == 10
    assert [each for each in session.frames if "@plt" not in each][:3] == ["scale", "step", "main"]
    session = run_gdb(shared, "reverse-stepi", "bt", "show remotetimeout")
    assert session.frames[:4] == ["deeper"] * 4
    # gdb would match a reply after its timeout to its next request
    assert "to respond is 3600" in session.out


def test_open_calls_are_the_stack_at_the_crash(shared: Path) -> None:
    """No call that returned is among them; callers of main are functions of the C library."""
    names = caller_names(shared)
    assert names[:4] == ["deeper", "deeper", "deeper", "main"]
    assert names[-1] == "_start"
    assert all("start" in each for each in names[4:])


def test_pc_and_code_are_known_data_is_unavailable(shared: Path) -> None:
    session = run_gdb(shared, "p $rax", "p/x $pc", "x/2i deeper", "p *(char *)$sp", "set var $pc=1")
    assert "$1 = <unavailable>" in session.out
    pc = re.search(r"^\$2 = 0x([0-9a-f]+)$", session.out, re.MULTILINE)
    assert pc is not None
    with rtit.Trace(shared) as trace:
        [ended] = trace.endings
        assert ended.exit_status.fault is not None
        assert int(pc[1], 16) == ended.exit_status.fault.ip
    assert "<deeper>:" in session.out
    # memory of the stack is not recorded, and registers cannot be changed
    assert "$3" not in session.out
    assert session.err.count("\n") >= 2


def test_function_call_history_ends_in_recursion(shared: Path) -> None:
    session = run_gdb(shared, "record function-call-history /c")
    named = re.findall(r"^\d+\t +(\w+)$", session.out, re.MULTILINE)
    assert named[-4:] == ["deeper"] * 4, session.out


def test_stripped_program_has_frames_without_names(program: ProgramBuilder, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    shutil.copy(program("crash_late"), stripped)
    strip = shutil.which("strip")
    if strip is None:
        pytest.skip("strip is not installed")
    subprocess.run([strip, str(stripped)], check=True)
    data = record_program(tmp_path, stripped, truth=tmp_path / "truth")
    session = run_gdb(data, "info record", "bt", "reverse-stepi", "x/i $pc")
    assert session.recorded == (executed_instructions(tmp_path / "truth"), 0)
    assert set(session.frames) == {"??"}
    assert re.search(r"^=> 0x[0-9a-f]+:\tmov ", session.out, re.MULTILINE)


def test_gdb_without_libipt_gets_blocks(shared: Path, tmp_path: Path) -> None:
    real = shutil.which("gdb")
    fake = tmp_path / "gdb"
    fake.write_text(
        '#!/bin/sh\n[ "$2" = --configuration ] && echo "--with-expat --without-intel-pt" && exit\n'
        f'exec {real} "$@"\n'
    )
    fake.chmod(0o755)
    session = run_gdb(shared, "info record", path=f"{tmp_path}:/usr/bin:/bin")
    assert "built without libipt: rtit sends blocks, not packets" in session.err
    assert "Recording format: Branch Trace Store." in session.out
    assert session.recorded == (executed_instructions(shared.with_name("truth")), 0)
    session = run_gdb(shared, options=("--format", "pt"), path=f"{tmp_path}:/usr/bin:/bin")
    assert session.status == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_to_server_ends_gdb(shared: Path, tmp_path: Path, number: signal.Signals) -> None:
    # longer than the path of a socket can be
    temporary = tmp_path / ("temporary" * 12)
    temporary.mkdir()
    with subprocess.Popen(
        [*RTIT, "gdb", str(shared), "--gdb", "gdb -nx", "--ex", "shell echo ready"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(Path(rtit.__file__).parent.parent),
            "HOME": str(tmp_path),
            "TMPDIR": str(temporary),
        },
    ) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if line == b"ready\n":
                break
        server.send_signal(number)
        # gdb shares this pipe, which closes when both have exited
        server.stdout.read()
        assert server.wait(300) == 128 + number
    assert not [*temporary.iterdir()]


def test_listen_serves_gdb_over_tcp(shared: Path) -> None:
    gdb = find_gdb().argv[0]
    with subprocess.Popen(
        [*RTIT, "gdb", "--listen", "0", str(shared)], stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        address = ""
        for line in server.stderr:
            if "target remote" in line:
                address = line.split()[-1]
                break
        assert address.startswith("127.0.0.1:")
        ended = subprocess.run(
            [gdb, "-nx", "-batch", "-ex", f"target remote {address}", "-ex", "info record"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert server.wait(300) == 0
    found = RECORDED_LINE.search(ended.stdout)
    assert found is not None, ended.stdout + ended.stderr
    assert int(found[1]) == executed_instructions(shared.with_name("truth"))
