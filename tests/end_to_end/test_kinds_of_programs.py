"""Programs of many kinds behave under each back end as natively, and decode as executed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from programs.build import C_LIBRARY, COMMON, SOURCES, CannotBuildError, compiled
from rtit.cli.main import main
from support.processes import wait_until
from support.recordings import RTIT, require_backend

KINDS = SOURCES / "kinds"
EXIT_NEEDS_ROOT = 77
BOTH_BACKENDS = ("qemu", "ptrace")


@dataclass(frozen=True)
class Kind:
    """A kind of program: `command` builds it in a folder and returns its arguments.

    `lints` is False for recordings of many megabytes, which lint takes minutes for.
    """

    command: Callable[[Path], list[str]]
    backends: tuple[str, ...] = BOTH_BACKENDS
    lints: bool = True


def find_tool(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"{name} is not installed")


def c_program(source: str, *words: str, flags: tuple[str, ...] = C_LIBRARY) -> Kind:
    def command(_: Path) -> list[str]:
        name = Path(source).stem
        try:
            built = compiled(name, [str(SOURCES / source)], language="c", flags=[*COMMON, *flags])
        except CannotBuildError as error:
            pytest.skip(str(error))
        return [str(built), *words]

    return Kind(command)


def build_go(folder: Path) -> list[str]:
    program, cache = folder / "loop", os.environ.get("GOCACHE", str(folder / "cache"))
    subprocess.run(
        [find_tool("go"), "build", "-o", program, KINDS / "loop.go"],
        env={**os.environ, "GOCACHE": cache, "GO111MODULE": "off"},
        check=True,
    )
    return [str(program)]


def build_java(folder: Path) -> list[str]:
    subprocess.run([find_tool("javac"), "-d", folder, KINDS / "Loop.java"], check=True)
    return [find_tool("java"), "-XX:+UseSerialGC", "-XX:-UsePerfData", "-cp", str(folder), "Loop"]


def node_command(_: Path) -> list[str]:
    # Otherwise node checksums its whole snapshot first.
    return [find_tool("node"), "--no-verify-snapshot-checksum", str(KINDS / "loop.js")]


def luajit_command(_: Path) -> list[str]:
    return [find_tool("luajit"), str(KINDS / "loop.lua")]


PROGRAMS = {
    "static": c_program("kinds/hello.c"),
    "dynamic": c_program("kinds/hello.c", flags=()),
    "exec of an unlinked file": c_program("exec_kinds.c", "unlinked"),
    "exec of a file in memory": c_program("exec_kinds.c", "memory"),
    "exec by the path of an open file": c_program("exec_kinds.c", "by_path"),
    "exec after a change of user": c_program("exec_kinds.c", "dropped"),
    "go": Kind(build_go),
    "luajit": Kind(luajit_command),
    # Single-stepping their start takes hours; a test below attaches to them instead.
    "java": Kind(build_java, backends=("qemu",), lints=False),
    "node": Kind(node_command, backends=("qemu",), lints=False),
}
SLOW = {
    *(("go", "ptrace"), ("luajit", "ptrace"), ("node", "qemu")),
    *(("exec of a file in memory", "ptrace"), ("exec by the path of an open file", "ptrace")),
    *(("java", "qemu"), ("dynamic", "ptrace")),
}
"""Of these, `make test` records node in test_qemu_large.py instead of java, a dynamic program in
test_closed_loop.py, and the others under QEMU."""
UNRECORDED = {("exec after a change of user", "qemu")}
"""Programs and back ends where the new program cannot reach the recorder."""


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(name, backend, marks=[pytest.mark.slow] if (name, backend) in SLOW else [])
        for name, kind in PROGRAMS.items()
        for backend in kind.backends
    ],
)
def test_program_behaves_as_natively_and_is_decoded_as_executed(
    name: str, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_backend(backend)
    kind = PROGRAMS[name]
    command = kind.command(tmp_path)
    native = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=300)
    if native.returncode == EXIT_NEEDS_ROOT:
        pytest.skip("only root may do this")
    options = ["--backend", backend, "-q", "--truth", "truth"]
    recorded = subprocess.run(
        [*RTIT, "record", *options, "--", *command],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=900,
    )
    assert (recorded.returncode, recorded.stdout) == (native.returncode, native.stdout)
    said = recorded.stderr.removeprefix(native.stderr)
    if (name, backend) in UNRECORDED:
        assert said.count(b"\n") == 1
        assert b"runs unrecorded: QEMU, the plugin or the recorder is out of its reach" in said
    else:
        assert said == b""
    data, truth = str(tmp_path / "perf.data"), str(tmp_path / "truth")
    assert main(["verify", data, "--truth", truth]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("identical: ")
    if kind.lints:
        assert main(["lint", data]) == 0, capsys.readouterr().out


def build_waiting_java(folder: Path) -> list[str]:
    subprocess.run([find_tool("javac"), "-d", folder, KINDS / "Waiting.java"], check=True)
    # The compiler's threads would take most of the single steps.
    options = ["-Xint", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
    return [find_tool("java"), *options, "-cp", str(folder), "Waiting"]


def waiting_node_command(_: Path) -> list[str]:
    return [find_tool("node"), str(KINDS / "waiting.js")]


def is_attached(pid: int) -> bool:
    """Return whether a tracer has attached to all threads of a process."""
    statuses = Path(f"/proc/{pid}/task").glob("*/status")
    return not any("TracerPid:\t0\n" in status.read_text() for status in statuses)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "output", "exit_code"),
    [
        pytest.param(build_waiting_java, b"328350\n", 3, id="java"),
        pytest.param(waiting_node_command, b"41541750\n", -signal.SIGKILL, id="node"),
    ],
)
def test_attached_runtime_behaves_as_natively_and_is_decoded_as_executed(
    program: Callable[[Path], list[str]],
    output: bytes,
    exit_code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    require_backend("ptrace")
    with subprocess.Popen(
        program(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"running\n"
            options = ["-q", "--truth", "truth", "--pid", str(process.pid)]
            recorder = subprocess.Popen([*RTIT, "record", *options], cwd=tmp_path)
            wait_until(lambda: is_attached(process.pid), "the recorder attaches")
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.read() == output
            assert process.wait() == exit_code
        finally:
            process.kill()
    assert recorder.wait(timeout=60) == 0
    data, truth = str(tmp_path / "perf.data"), str(tmp_path / "truth")
    assert main(["verify", data, "--truth", truth]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("identical: ")
    assert main(["lint", data]) == 0, capsys.readouterr().out
