"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from programs.plugin import program
from support.browser import browser
from support.duckdb_files import query_parquet
from support.large_programs import large
from support.many_recordings import primes
from support.profiles import inlined, linkage_stubs, profiled, run_tool
from support.properties import register_profiles
from support.recordings import attach, qemu, record

__all__ = [
    "attach",
    "browser",
    "inlined",
    "large",
    "linkage_stubs",
    "primes",
    "profiled",
    "program",
    "qemu",
    "query_parquet",
    "record",
    "run_tool",
]

register_profiles()

ENVIRONMENT = (
    *("PATH", "HOME", "TMPDIR", "LD_", "VIRTUAL_ENV", "PYTHONPATH", "PYTEST_", "HYPOTHESIS_"),
    *("RTIT_", "CARGO", "RUST", "GO"),
)
"""Beginnings of the variables that tests and the programs that they start keep."""

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def traces() -> Path:
    """Real hardware traces, kept beside the repository and not in it."""
    path = ROOT.parent / "shared" / "traces"
    if not path.is_dir():
        pytest.skip("the folder of real traces is not beside the repository")
    return path


def pytest_configure() -> None:
    """Give the programs that tests start few environment variables and the default signals,
    however the suite was started.

    When a program starts, glibc compares each variable with all its tunables, and programs load
    the files of a locale: more single steps than most test programs need. PYTHONDONTWRITEBYTECODE
    lets each start of `rtit` compile the package.

    A shell ignores SIGINT and SIGQUIT in background jobs, nohup ignores SIGHUP, and a supervisor
    may ignore or block others; child processes inherit both. SIGPIPE and SIGXFSZ are Python's.
    """
    for name in [each for each in os.environ if not each.startswith(ENVIRONMENT)]:
        del os.environ[name]
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
