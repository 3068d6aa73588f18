"""Programs that log their own entries and exits, and their recordings."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
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
RECORDINGS_OF_UNWINDING = [("libraries.cpp", "qemu"), ("panics.rs", "qemu")]
"""Exceptions of C++ through three libraries, and panics of Rust."""
LIBRARIES = 3


def build_instrumented(source: str) -> Path:
    path = SOURCES / "calls" / source
    header = (SOURCES / "calls" / "entry_log.h").read_bytes()
    try:
        if path.suffix == ".rs":
            return _compiled_rust(path)
        if source == "libraries.cpp":
            return _compiled_with_libraries(path, header)
        return compiled(
            f"calls-{path.stem}",
            [str(path)],
            language="c++" if path.suffix == ".cpp" else "c",
            flags=FLAGS,
            depends=[header],
        )
    except CannotBuildError as error:
        pytest.skip(str(error))


def _compiled_with_libraries(path: Path, header: bytes) -> Path:
    def compiled_part(number: int, *flags: str, libraries: Sequence[str] = ()) -> Path:
        return compiled(
            f"calls-{path.stem}-{number}",
            [str(path)],
            language="c++",
            flags=[*FLAGS, f"-DPART={number}", *flags],
            depends=[header],
            libraries=list(libraries),
        )

    libraries: list[str] = []
    for number in range(LIBRARIES, 0, -1):
        part = compiled_part(number, "-fPIC", "-shared", libraries=libraries)
        libraries = [str(part), *libraries]
    return compiled_part(0, "-rdynamic", libraries=libraries)


@cache
def _compiled_rust(path: Path) -> Path:
    compiler = shutil.which("rustc")
    if compiler is None:
        raise CannotBuildError("no rustc")
    program = Path(_recordings().name) / path.stem
    flags = ["-g", "-C", "opt-level=1", "-C", "codegen-units=1", "-o", str(program)]
    command = [compiler, *flags, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CannotBuildError(result.stderr)
    return program


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
