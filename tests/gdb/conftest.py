"""The installed gdb, and a recording that several tests use."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs.build import SOURCES, CannotBuildError, compiled
from rtit.errors import UnsupportedError
from rtit.gdb.debugger import find_gdb
from support.gdb import record_program


@pytest.fixture(scope="session")
def gdb() -> None:
    """Skip unless a gdb that reads PT is installed."""
    try:
        if not find_gdb().has_libipt:
            pytest.skip("gdb was built without libipt")
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a PIE that crashes in a shared object."""
    flags = ["-g", "-O1", "-fno-inline", "-fno-optimize-sibling-calls"]
    try:
        part = compiled(
            "shared_part",
            [str(SOURCES / "shared_part.c")],
            language="c",
            flags=[*flags, "-fPIC", "-shared"],
        )
        program = compiled(
            "shared_main",
            [str(SOURCES / "shared_main.c")],
            language="c",
            flags=[*flags, "-fPIE", "-pie", "-Wl,-z,now"],
            libraries=[str(part)],
        )
    except CannotBuildError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("shared")
    return record_program(folder, program, truth=folder / "truth")
