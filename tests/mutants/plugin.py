"""The pytest side: keep the tests of some requirements, see which lines they run, mutate a module.

Driven by environment variables: RTIT_ROWS (ids; other tests are left out), RTIT_SEEN (file for what
was seen of each test, as JSON), RTIT_LINES (see also the lines that it runs), RTIT_MUTANT (a
mutation, as JSON), RTIT_FAILED (file for the first test that fails, of the requirements' first, as
JSON), RTIT_SECONDS (of processor time, after which the run is killed).
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
PARTS = ("packets", "registers", "unit", "processor")
NOT_LOADED = 70
"""Exit code of a run that never loaded the module to be mutated."""
MEMORY = 8 << 30
FOREIGN = frozenset(("attach", "large", "program", "record", "traces"))
"""Fixtures that not every machine has: the verdict is to be the same on all."""


def sources() -> list[Path]:
    """The files that are mutated."""
    folders = (PACKAGE / "rtit" / part for part in PARTS)
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def module_of(path: Path) -> str:
    """The name under which a file is imported."""
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
        place = PACKAGE.joinpath(*fullname.split("."))
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        loader = _Loader(self._mutation, str(file))
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


if "RTIT_SECONDS" in os.environ:
    _limit = int(os.environ["RTIT_SECONDS"])
    resource.setrlimit(resource.RLIMIT_CPU, (_limit, _limit + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
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
    """Keep the tests of the rows asked for that run on every machine."""
    items[:] = [item for item in items if not FOREIGN & set(getattr(item, "fixturenames", ()))]
    if "RTIT_ROWS" in os.environ:
        wanted = set(os.environ["RTIT_ROWS"].split())
        items[:] = [item for item in items if rows_of(item) & wanted]
    if "RTIT_FAILED" in os.environ:
        items.sort(key=lambda item: not rows_of(item))


_seen: list[dict[str, Any]] = []
_PATHS = [str(path) for path in sources()]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """See how long a test takes, and which lines it runs."""
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
    seen = {"file": str(item.path), "rows": sorted(rows_of(item)), "lines": ran}
    _seen.append({**seen, "seconds": seconds})


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Name the first test that fails, with its requirements."""
    outcome: Any = yield
    file = Path(os.environ.get("RTIT_FAILED", os.devnull))
    if outcome.get_result().failed and not file.exists():
        file.write_text(json.dumps({"test": item.nodeid, "rows": sorted(rows_of(item))}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave what was seen."""
    if "RTIT_SEEN" in os.environ:
        Path(os.environ["RTIT_SEEN"]).write_text(json.dumps(_seen))
    if "RTIT_MUTANT" in os.environ and not _loaded:
        session.exitstatus = NOT_LOADED
