"""The pytest side: keep the tests of some requirements, see which lines they run, mutate a module.

Driven by environment variables: RTIT_ROWS (ids; other tests are left out), RTIT_LINES (file for the
lines that each test ran, as JSON), RTIT_MUTANT (a mutation, as JSON).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import hypothesis
import pytest

from mutants.mutation import Mutation, mutated

PACKAGE = Path(__file__).resolve().parents[2] / "python"
PARTS = ("packets", "registers", "unit", "processor")


def sources() -> list[Path]:
    """The files that are mutated."""
    folders = (PACKAGE / "rtit" / part for part in PARTS)
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def module_of(path: Path) -> str:
    """The name under which a file is imported."""
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__")


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, mutation: Mutation, path: str) -> None:
        super().__init__(mutation.module, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType | None:
        source = Path(self.path).read_text()
        return compile(mutated(self._mutation, source), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutation.module:
            return None
        place = PACKAGE.joinpath(*fullname.split("."))
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        loader = _Loader(self._mutation, str(file))
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


if "RTIT_MUTANT" in os.environ:
    sys.meta_path.insert(0, _Finder(Mutation(**json.loads(os.environ["RTIT_MUTANT"]))))


def pytest_configure(config: pytest.Config) -> None:
    """The same examples each time, or the verdict would change from run to run."""
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("mutants")


def rows_of(item: pytest.Item) -> set[str]:
    """The requirements that a test checks."""
    return {str(row) for mark in item.iter_markers("spec") for row in mark.args}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the rows asked for."""
    if "RTIT_ROWS" in os.environ:
        wanted = set(os.environ["RTIT_ROWS"].split())
        items[:] = [item for item in items if rows_of(item) & wanted]


_seen: list[dict[str, Any]] = []


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """See which lines a test runs."""
    if "RTIT_LINES" not in os.environ:
        yield
        return
    lines: dict[str, set[int]] = {str(path): set() for path in sources()}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        found = lines.get(frame.f_code.co_filename)
        if found is None or frame.f_code.co_name == "<module>":
            return None

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            found.add(frame.f_lineno)
            return line

        return line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
    ran = {path: sorted(found) for path, found in lines.items() if found}
    _seen.append({"file": str(item.path), "rows": sorted(rows_of(item)), "lines": ran})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave what was seen."""
    if "RTIT_LINES" in os.environ:
        Path(os.environ["RTIT_LINES"]).write_text(json.dumps(_seen))
