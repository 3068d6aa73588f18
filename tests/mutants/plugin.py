"""A pytest plugin: selects tests of some requirements, records their lines, mutates a module.

Environment variables control it: RTIT_ROWS (ids; other tests are left out), RTIT_SEEN (JSON
file for the records of each test), RTIT_LINES (also record the lines that it runs), RTIT_MUTANT
(a mutation, as JSON), RTIT_FAILED (JSON file for the first test that fails; tests of
requirements run first), RTIT_SECONDS (limit of processor time).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import hypothesis
import pytest

from mutants.mutation import Mutation, mutated

PACKAGE = Path(__file__).resolve().parents[2] / "python"
PACKAGES = ("packets", "registers", "unit", "processor")
NOT_LOADED = 70
"""Exit code of a run that never loaded the module to be mutated."""
MEMORY = 8 << 30
LOCAL_FIXTURES = frozenset(("attach", "large", "program", "record", "traces"))
"""Fixtures that not every machine has; without their tests, verdicts are portable."""


def mutated_files() -> list[Path]:
    """Return the files to mutate."""
    folders = (PACKAGE / "rtit" / part for part in PACKAGES)
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def module_name(path: Path) -> str:
    """Return the name under which a file is imported."""
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__")


_loaded: list[str] = []


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, mutation: Mutation, path: str) -> None:
        super().__init__(mutation.module, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType | None:
        tree = mutated(self._mutation, Path(self.path).read_text())
        _loaded.append(fullname)
        return compile(tree, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutation.module:
            return None
        module = PACKAGE.joinpath(*fullname.split("."))
        file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        loader = _Loader(self._mutation, str(file))
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


if "RTIT_SECONDS" in os.environ:
    _limit = int(os.environ["RTIT_SECONDS"])
    resource.setrlimit(resource.RLIMIT_CPU, (_limit, _limit + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
if "RTIT_MUTANT" in os.environ:
    sys.meta_path.insert(0, _Finder(Mutation(**json.loads(os.environ["RTIT_MUTANT"]))))


def pytest_configure(config: pytest.Config) -> None:
    """Use the same examples each time, so that verdicts do not change between runs."""
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("mutants")


def requirement_ids(item: pytest.Item) -> set[str]:
    """Return the ids of the requirements that a test checks."""
    return {str(row) for mark in item.iter_markers("spec") for row in mark.args}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the selected rows that run on every machine."""
    items[:] = [
        item for item in items if not LOCAL_FIXTURES & set(getattr(item, "fixturenames", ()))
    ]
    if "RTIT_ROWS" in os.environ:
        selected = set(os.environ["RTIT_ROWS"].split())
        items[:] = [item for item in items if requirement_ids(item) & selected]
    if "RTIT_FAILED" in os.environ:
        items.sort(key=lambda item: not requirement_ids(item))


_seen: list[dict[str, Any]] = []
_PATHS = [str(path) for path in mutated_files()]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Record the duration of a test, and the lines that it runs."""
    lines: dict[str, set[int]] = {path: set() for path in _PATHS}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        found = lines.get(frame.f_code.co_filename)
        if found is None or frame.f_code.co_name == "<module>":
            return None

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            found.add(frame.f_lineno)
            return line

        return line

    before = sys.gettrace()
    begin = time.process_time()
    if "RTIT_LINES" in os.environ:
        sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
    ran = {path: sorted(found) for path, found in lines.items() if found}
    seconds = time.process_time() - begin
    seen = {"file": str(item.path), "rows": sorted(requirement_ids(item)), "lines": ran}
    _seen.append({**seen, "seconds": seconds})


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Write the name and the requirements of the first test that fails."""
    outcome: Any = yield
    file = Path(os.environ.get("RTIT_FAILED", os.devnull))
    if outcome.get_result().failed and not file.exists():
        file.write_text(json.dumps({"test": item.nodeid, "rows": sorted(requirement_ids(item))}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the records of all tests."""
    if "RTIT_SEEN" in os.environ:
        Path(os.environ["RTIT_SEEN"]).write_text(json.dumps(_seen))
    if "RTIT_MUTANT" in os.environ and not _loaded:
        session.exitstatus = NOT_LOADED
