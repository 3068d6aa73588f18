"""Recording: instructions per second, and slowdown."""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import clock

SOURCE = Path(__file__).resolve().parent / "empty_plugin.c"
# Versions of the plugin interface, newest first; a QEMU rejects those that it does not support.
VERSIONS = (5, 4, 3, 2, 1)


def record(command: Sequence[str | Path], output: Path, backend: str = "auto") -> None:
    """Record a program through the command line. Raises RuntimeError if rtit fails."""
    result = subprocess.run(recorder(command, output, backend), capture_output=True, check=False)
    if result.returncode or not output.exists():
        text = result.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"rtit record: status {result.returncode}: {text}")


def recorder(command: Sequence[str | Path], output: Path, backend: str) -> list[str | Path]:
    """Return the command line of a recording."""
    words = [sys.executable, "-m", "rtit", "record", "-q", "--backend", backend]
    return [*words, "-o", output, "--", *command]


def build_empty_plugin(folder: Path, version: int) -> Path:
    """Build a plugin that does nothing at each block, for a version of the plugin interface.

    Raises OSError, and subprocess.CalledProcessError.
    """
    plugin = folder / f"empty{version}.so"
    flags = ["-O2", "-shared", "-fPIC", f"-DVERSION={version}"]
    build: list[str | Path] = ["cc", *flags, "-o", plugin, SOURCE]
    subprocess.run(build, capture_output=True, check=True)
    return plugin


def empty_plugin(qemu: Path, folder: Path) -> Path | None:
    """Build a plugin that does nothing at each block; None if it cannot be built or loaded."""
    for version in VERSIONS:
        try:
            plugin = build_empty_plugin(folder, version)
            subprocess.run([qemu, "-plugin", plugin, "/bin/true"], capture_output=True, check=True)
        except OSError:
            return None
        except subprocess.CalledProcessError:
            continue
        return plugin
    return None


def measure_recording(
    what: str,
    command: Sequence[str | Path],
    output: Path,
    repetitions: int,
    qemu: Path | None = None,
    empty: Path | None = None,
) -> dict[str, Any]:
    """Measure one program; leave the last recording at `output`.

    Returns {"what", "backend", "instructions", "bytes", "native_seconds", "qemu_seconds",
    "empty_seconds", "seconds", "instructions_per_second", "slowdown", "slowdown_of_qemu"}: medians
    of wall time, since the tracer and the program alternate. They include the start of Python.
    `qemu` is the QEMU to record with; None for single steps. `empty` is the plugin that does
    nothing. The four run alternately, so that other load on the machine affects all of them.
    """
    from rtit.trace import Trace

    def wall(words: Sequence[str | Path]) -> float:
        return clock.process_usage(words).wall

    backend = "ptrace" if qemu is None else "qemu"
    commands: dict[str, list[str | Path]] = {"native_seconds": list(command)}
    if qemu is not None:
        commands["qemu_seconds"] = [qemu, *command]
        if empty is not None:
            commands["empty_seconds"] = [qemu, "-plugin", empty, *command]
    commands["seconds"] = recorder(command, output, backend)
    measured = clock.alternate(
        repetitions, {name: functools.partial(wall, words) for name, words in commands.items()}
    )
    found: dict[str, float | None] = {"qemu_seconds": None, "empty_seconds": None}
    found |= {name: statistics.median(each) for name, each in measured.items()}
    with Trace(output) as trace:
        instructions = sum(int(s.native_decoder().count()["instructions"]) for s in trace.streams)
        size = sum(stream.size for stream in trace.streams)
    seconds, plain = statistics.median(measured["seconds"]), found["qemu_seconds"]
    return {
        "what": what,
        "backend": backend,
        "instructions": instructions,
        "bytes": size,
        **found,
        "instructions_per_second": instructions / seconds,
        "slowdown": seconds / statistics.median(measured["native_seconds"]),
        "slowdown_of_qemu": seconds / plain if plain else None,
    }


def installed_programs(folder: Path) -> dict[str, list[str | Path]]:
    """Return installed programs, short and long; their input is written to `folder`."""
    lines = [b"line %d of a file to compress\n" % (i * i) for i in range(600_000)]
    short, long = folder / "1MB", folder / "20MB"
    short.write_bytes(b"".join(lines[:30_000]))
    long.write_bytes(b"".join(lines))
    commands: dict[str, list[str | Path]] = {
        "/bin/true": ["/bin/true"],
        "ls -l /usr/bin": ["/bin/ls", "-l", "/usr/bin"],
        "gzip of 1 MB": ["/bin/gzip", "-kf", short],
        "sort of 1 MB": ["/usr/bin/sort", "--parallel=2", "-o", "/dev/null", short],
        "xz -T2 of 1 MB": ["/usr/bin/xz", "-kf", "-T2", "-3", "--block-size=500000", short],
        "gzip of 20 MB": ["/bin/gzip", "-kf", long],
    }
    return {what: command for what, command in commands.items() if os.access(command[0], os.X_OK)}


def under_qemu(folder: Path, repetitions: int) -> list[dict[str, Any]]:
    """Measure real programs under QEMU, short and long; return no rows without a QEMU."""
    from rtit.capture.qemu.installation import find_qemu

    found = find_qemu()
    if isinstance(found, str):
        print(f"without QEMU: {found}")
        return []
    empty = empty_plugin(found.qemu, folder)
    output = folder / "qemu.data"
    return [
        measure_recording(what, command, output, repetitions, found.qemu, empty)
        for what, command in installed_programs(folder).items()
    ]
