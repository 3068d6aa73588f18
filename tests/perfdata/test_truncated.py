"""A recording that another process truncates while rtit reads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.oversized import write_oversized

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have other signals")

AT_OPENING = """
from rtit.perfdata import reader
def truncating(map_recording):
    def opened(source):
        found = map_recording(source)
        os.truncate(source, {size})
        return found
    return opened
reader.map_recording = truncating(reader.map_recording)
"""
BEFORE_DECODING = """
from rtit.perfdata import PerfData
def truncating(auxtrace_buffers):
    def found(data):
        buffers = auxtrace_buffers(data)
        os.truncate(data.path, {size})
        return buffers
    return found
PerfData.auxtrace_buffers = truncating(PerfData.auxtrace_buffers)
"""
COMMAND = "import os, sys\nfrom rtit.cli.main import main\n{hook}\nsys.exit(main())\n"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_oversized(tmp_path_factory.mktemp("oversized"), "targets", 1 << 20).read_bytes()


@pytest.mark.parametrize("subcommand", ["report", "packets", "instructions", "stat", "edges"])
@pytest.mark.parametrize(
    ("hook", "pages", "message"),
    [
        (AT_OPENING, 0, "not a perf.data file"),
        (AT_OPENING, 16, "the file became shorter while it was read"),
        (BEFORE_DECODING, 16, "the file became shorter while it was read"),
        (BEFORE_DECODING, 200, "the file became shorter while it was read"),
    ],
)
def test_command_reports_truncation_in_one_line(
    recording: bytes, tmp_path: Path, subcommand: str, hook: str, pages: int, message: str
) -> None:
    path = tmp_path / "perf.data"
    path.write_bytes(recording)
    size = pages * os.sysconf("SC_PAGESIZE")
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND.format(hook=hook.format(size=size)), subcommand, str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    line, *hints = ended.stderr.splitlines()
    assert line.startswith(f"rtit {subcommand}: {path}")
    assert message in line
    assert "offset 0" in line
    assert all(hint.startswith("  ") for hint in hints)


def test_command_ends_by_other_bus_errors() -> None:
    code = "import os, signal\nfrom rtit import _core\n_core.read_truncated_maps_as_zeros()\n"
    ended = subprocess.run(
        [sys.executable, "-c", code + "os.kill(os.getpid(), signal.SIGBUS)"], check=False
    )
    assert ended.returncode == -signal.SIGBUS


def test_library_installs_no_signal_handler(recording: bytes, tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    path.write_bytes(recording)
    code = (
        "import sys\n"
        "def handled():\n"
        "    status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "    # the C library has realtime signals of its own\n"
        "    return int(status['SigCgt'], 16) & 0x7fffffff\n"
        "before = handled()\n"
        "import rtit\n"
        "with rtit.Trace(sys.argv[1]) as trace:\n"
        "    assert list(trace.streams[0].rows())\n"
        "assert handled() == before\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
