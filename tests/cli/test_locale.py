"""Names of files are bytes: what a locale makes of them does not show in a recording."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from back_ends import need
from live import RTIT
from rtit import Trace

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(*words: str) -> str:
    environment = {**os.environ, **ASCII}
    ended = subprocess.run(
        [*RTIT, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
def test_names_that_are_not_ascii(
    backend: str, program: Callable[[str], Path], tmp_path: Path
) -> None:
    need(backend)
    # in UTF-8 and in nothing
    for name in ("prög€", os.fsdecode(b"pr\xffg")):
        path, data = tmp_path / name, str(tmp_path / "data")
        shutil.copy(program("recursion"), path)
        run("record", "--backend", backend, "-o", data, "--", str(path))
        with Trace(data) as trace:
            assert list(trace.comms.values()) == [name]
            (stream,) = trace.streams
            assert str(path) in {each.path for each in trace.images.mappings(stream.tid)}
            assert trace.image_problems == []
        assert f"({ascii_of(name)})" in run("report", data)
        assert f"  {ascii_of(name)}\n" in run("stat", "--per", "dso", "--", str(path))


def ascii_of(name: str) -> str:
    """As it is printed where there is nothing but ASCII."""
    return "".join(chr(byte) if byte < 0x80 else f"\\x{byte:02x}" for byte in os.fsencode(name))
