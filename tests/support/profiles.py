"""A recorded program for profiles, and the tools of other projects that read profiles."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from programs.build import SOURCES, CannotBuildError, compiled
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from support.recordings import record_to_end, require_backend

LLVM_FOLDERS = [Path("/usr/lib") / f"llvm-{version}" / "bin" for version in range(22, 15, -1)]
FLAGS = ["-gdwarf-4", "-O2", "-fno-optimize-sibling-calls", "-Wl,-q"]


@dataclass(frozen=True)
class ProfiledProgram:
    """A program and its recording."""

    program: Path
    data: Path

    def written(self, tool: str, *options: str) -> Path:
        """Run `rtit profile --for tool` and return the file that it wrote."""
        output = self.data.parent / f"profile.{tool}"
        words = ["profile", str(self.data), "--for", tool, "-o", str(output), *options]
        assert main(words) == 0
        return output


@pytest.fixture(scope="session")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> ProfiledProgram:
    return build_and_record("profiled", FLAGS, tmp_path_factory)


@pytest.fixture(scope="session")
def inlined(tmp_path_factory: pytest.TempPathFactory) -> ProfiledProgram:
    return build_and_record("inlined", ["-gdwarf-4", "-O2"], tmp_path_factory)


@pytest.fixture(scope="session")
def linkage_stubs(tmp_path_factory: pytest.TempPathFactory) -> ProfiledProgram:
    """A program that calls functions of the C library through lazy stubs, thousands of times."""
    flags = ["-O1", "-fno-builtin", "-Wl,-q,-z,lazy"]
    return build_and_record("linkage_stubs", flags, tmp_path_factory)


def build_and_record(
    name: str, flags: list[str], tmp_path_factory: pytest.TempPathFactory
) -> ProfiledProgram:
    """Build a C program and record it; skip the test if this is impossible."""
    try:
        program = compiled(name, [str(SOURCES / f"{name}.c")], language="c", flags=flags)
    except CannotBuildError as error:
        pytest.skip(str(error))
    return record_program(program, tmp_path_factory.mktemp(name))


def record_program(program: Path, folder: Path) -> ProfiledProgram:
    """Record a program with QEMU; skip the test if there is none."""
    require_backend("qemu")
    data = folder / "perf.data"
    record_to_end(start_recording(RecordRequest([str(program)], backend="qemu", output=data)))
    return ProfiledProgram(program, data)


ToolRunner = Callable[..., str]


@pytest.fixture
def run_tool(tmp_path: Path) -> ToolRunner:
    """Run a tool of another project in a temporary folder and return its output; skip the test if
    the tool is not installed.
    """

    def ran(name: str, *words: str | Path) -> str:
        candidates = [place / name for place in LLVM_FOLDERS if (place / name).exists()]
        found = shutil.which(name) or (str(candidates[0]) if candidates else None)
        if found is None:
            pytest.skip(f"{name} is not installed")
        ended = subprocess.run(
            [found, *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            timeout=300,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    return ran
