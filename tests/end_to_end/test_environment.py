"""A recorded program has its native environment; QEMU's options are not in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.request import RecordRequest
from rtit.errors import UsageError
from support.recordings import RTIT, require_backend

BACKENDS = ["qemu", "ptrace"]
TRACES_CALLS = "QEMU_STRACE=1"


def run_rtit(
    folder: Path, *words: str, command: str = "record", **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RTIT, command, *words],
        cwd=folder,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_entry_with_empty_name_reaches_program(
    backend: str, program: Callable[[str], Path], tmp_path: Path
) -> None:
    require_backend(backend)
    exe = str(program("environment"))
    ended = run_rtit(tmp_path, "-q", "--backend", backend, "--", exe, **{"": "text"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "=text" in ended.stdout.splitlines()


@pytest.mark.parametrize("backend", ["qemu", pytest.param("ptrace", marks=pytest.mark.slow)])
def test_program_sees_qemu_variables_and_qemu_does_not(backend: str, tmp_path: Path) -> None:
    require_backend(backend)
    program = ["/bin/sh", "-c", "/usr/bin/env; exit 3"]
    ended = run_rtit(tmp_path, "-q", "--backend", backend, "--", *program, QEMU_STRACE="1")
    assert (ended.returncode, ended.stderr) == (3, "")
    assert TRACES_CALLS in ended.stdout.splitlines()


def test_qemu_probe_gets_no_qemu_variables(tmp_path: Path) -> None:
    require_backend("qemu")
    home = str(tmp_path)
    ended = run_rtit(
        tmp_path, "-q", "--backend", "qemu", "--", "/bin/true", QEMU_CPU="none", XDG_CACHE_HOME=home
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("given", [TRACES_CALLS, "QEMU_STRACE"])
@pytest.mark.parametrize("command", ["record", "stat"])
def test_qemu_env_sets_variables_of_qemu_but_not_of_the_program(
    given: str, command: str, tmp_path: Path
) -> None:
    require_backend("qemu")
    own = {} if "=" in given else {"QEMU_STRACE": "1"}
    # The second program has its own QEMU.
    program = ["/bin/sh", "-c", "/usr/bin/env; exit 3"]
    ended = run_rtit(tmp_path, "--qemu-env", given, "--", *program, command=command, **own)
    assert ended.returncode == 3, ended.stderr
    assert (TRACES_CALLS in ended.stdout.splitlines()) == bool(own)
    assert ended.stderr.count(' access("/etc/ld.so.preload"') == 2


@pytest.mark.parametrize("entry", ["PATH=/", "QEMU_NOT_SET_HERE", "=1"])
def test_qemu_env_refuses_other_variables(entry: str) -> None:
    with pytest.raises(UsageError, match="--qemu-env"):
        RecordRequest(["true"], qemu_env=[entry])


def test_qemu_env_needs_qemu() -> None:
    with pytest.raises(UsageError, match="--backend qemu"):
        RecordRequest(["true"], backend="ptrace", qemu_env=[TRACES_CALLS])
