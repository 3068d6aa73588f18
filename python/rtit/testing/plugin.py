"""The pytest plugin: the fixture `rtit`, and the options `--rtit-update`, `--rtit-keep` and
`--rtit-coverage`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rtit.testing.programs import Programs

_DEFAULT_FOLDER = "rtit-kept"
_COVERAGE_FOLDER = "rtit-coverage"
_PROGRAMS = pytest.StashKey["Programs"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("rtit")
    group.addoption(
        "--rtit-update",
        action="store_true",
        help="store the counts of assert_instructions as new baselines, where they differ",
    )
    group.addoption(
        "--rtit-keep",
        nargs="?",
        const=_DEFAULT_FOLDER,
        metavar="DIR",
        help="keep what a failing test has recorded, with the programs, for rtit report, diff, gdb "
        f"(default: {_DEFAULT_FOLDER})",
    )
    group.addoption(
        "--rtit-coverage",
        nargs="?",
        const=_COVERAGE_FOLDER,
        metavar="DIR",
        help="record the programs of each test, and store what they ran, for rtit coverage "
        f"--by-test; older files in DIR are removed (default: {_COVERAGE_FOLDER})",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove the coverage of an earlier session, once for all workers of pytest-xdist."""
    folder = _coverage_folder(session.config)
    if folder is not None and not hasattr(session.config, "workerinput"):
        from rtit.coverage.by_test import coverage_files

        stored = coverage_files(folder)
        if folder.is_file() or (folder.is_dir() and len(stored) < len([*folder.iterdir()])):
            raise pytest.UsageError(
                f"--rtit-coverage: {folder} has files that rtit has not written. Write "
                "--rtit-coverage=DIR, or put the option after the names of the tests"
            )
        for path in stored:
            path.unlink()


def _coverage_folder(config: pytest.Config) -> Path | None:
    folder = config.getoption("rtit_coverage")
    return None if folder is None else config.invocation_params.dir / folder


@pytest.fixture
def rtit(request: pytest.FixtureRequest) -> Iterator[Programs]:
    """Run, count, record and compare programs (`rtit.testing.Programs`)."""
    from rtit.testing.baseline import Baselines
    from rtit.testing.programs import Programs

    node = request.node
    folder = _coverage_folder(request.config)
    test = node.nodeid.partition("::")[2]
    programs = Programs(
        test,
        Baselines(node.path),
        update=request.config.getoption("rtit_update"),
        keeps_recordings=request.config.getoption("rtit_keep") is not None or folder is not None,
    )
    node.stash[_PROGRAMS] = programs
    yield programs
    if folder is not None:
        programs.store_coverage(folder, node.nodeid)
    programs.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the recordings of a failing test."""
    report = yield
    folder = item.config.getoption("rtit_keep")
    programs = item.stash.get(_PROGRAMS, None)
    if folder is not None and programs is not None and report.when == "call" and report.failed:
        # the node id, because tests of several files may have equal names
        name = re.sub(r"[^\w.\-\[\]]+", "_", item.nodeid)[-150:]
        lines = programs.keep(item.config.invocation_params.dir / folder / name)
        if lines:
            report.sections.append(("rtit kept", "\n".join(lines)))
    return report
