"""The fixture `program`, for a conftest to import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import CannotBuildError, build


@pytest.fixture(scope="session")
def program() -> Callable[[str], Path]:
    """Builds a test program by name and gives its path; skips where it cannot be built."""

    def built(name: str) -> Path:
        try:
            return build(name)
        except CannotBuildError as error:
            pytest.skip(str(error))

    return built
