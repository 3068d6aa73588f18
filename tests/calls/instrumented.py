"""Programs that log their own entries and exits, and their recordings."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from programs.build import SOURCES, CannotBuildError, compiled
from rtit import Image
from rtit.trace import Trace
from support.recordings import require_backend

FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-finstrument-functions"]
PROGRAMS = ["unwinding.c", "coroutines.c", "exceptions.cpp"]
"""Programs with one thread."""
RECORDINGS = [
    *((program, "qemu") for program in PROGRAMS),
    ("unwinding.c", "ptrace"),
    pytest.param("coroutines.c", "ptrace", marks=pytest.mark.slow),
    pytest.param("exceptions.cpp", "ptrace", marks=pytest.mark.slow),
]
"""Programs with one thread, each with the back end that records it."""
RECORDINGS_OF_THREADS = [
    ("shared_coroutines.c", "qemu"),
    pytest.param("shared_coroutines.c", "ptrace", marks=pytest.mark.slow),
]


def build_instrumented(source: str) -> Path:
    path = SOURCES / "calls" / source
    header = (SOURCES / "calls" / "entry_log.h").read_bytes()
    try:
        return compiled(
            f"calls-{path.stem}",
            [str(path)],
            language="c++" if path.suffix == ".cpp" else "c",
            flags=FLAGS,
            depends=[header],
        )
    except CannotBuildError as error:
        pytest.skip(str(error))


def record(program: Path, backend: str, folder: Path, *options: str) -> bytes:
    """Record the program into `data`; return its standard output."""
    words = ["record", "-q", "--backend", backend, "-o", str(folder / "data"), *options]
    words += ["--", str(program)]
    ended = subprocess.run([sys.executable, "-m", "rtit", *words], capture_output=True, check=True)
    return ended.stdout


@cache
def _recordings() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rtit-calls-")


@cache
def recorded(source: str, backend: str) -> tuple[Path, bytes]:
    """Return the recording of a program, and its log. Skips if it cannot be made."""
    require_backend(backend)
    folder = Path(_recordings().name) / f"{source}-{backend}"
    folder.mkdir(exist_ok=True)
    log = record(build_instrumented(source), backend, folder)
    return folder / "data", log


@cache
def coroutine_stream() -> tuple[bytes, Image]:
    """Return PT and code of the coroutine program."""
    path, _ = recorded("coroutines.c", "qemu")
    with Trace(path) as trace:
        [stream] = trace.streams
        return stream.read(), stream.image


def decoded_instructions(trace: Trace) -> int:
    return sum(stream.counts().instructions for stream in trace.streams)
