"""Sessions of the installed gdb with `rtit gdb`, and recordings for them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import rtit
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.gdb.target import GdbTarget
from support.recordings import RTIT, record_to_end, thread_ends

RECORDED_LINE = re.compile(
    r"^Recorded (\d+) instructions in \d+ functions \((\d+) gaps\)", re.MULTILINE
)
FRAME = re.compile(r"^#\d+ +(?:0x[0-9a-f]+ in )?(\S+) \(", re.MULTILINE)
BREAKPOINT_HIT = re.compile(r"^Breakpoint 1, ", re.MULTILINE)

ProgramBuilder = Callable[[str], Path]


@dataclass(frozen=True)
class GdbSession:
    """Exit status and output of a session of gdb."""

    status: int
    out: str
    err: str

    @property
    def recorded(self) -> tuple[int, int]:
        """Instructions and gaps that `info record` counts."""
        found = RECORDED_LINE.search(self.out)
        assert found is not None, self.out + self.err
        return int(found[1]), int(found[2])

    @property
    def frames(self) -> list[str]:
        """The functions of all backtraces, in order."""
        return FRAME.findall(self.out)


def run_gdb(
    data: Path, *commands: str, options: tuple[str, ...] = (), path: str = ""
) -> GdbSession:
    """Run `rtit gdb` with commands of gdb."""
    words = [word for each in commands for word in ("--ex", each)]
    ended = subprocess.run(
        [*RTIT, "gdb", str(data), *options, "--gdb", "gdb -nx", "--batch", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={
            "PATH": path or "/usr/bin:/bin",
            "PYTHONPATH": str(Path(rtit.__file__).parent.parent),
            "HOME": str(data.parent),
        },
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return GdbSession(ended.returncode, ended.stdout, ended.stderr)


def record_program(folder: Path, *argv: str | Path, backend: str = "auto", **more: object) -> Path:
    """Record a program and return the recording."""
    words = tuple(map(str, argv))
    request = RecordRequest(words, backend=backend, output=folder / "data", **more)  # type: ignore[arg-type]
    record_to_end(start_recording(request))
    return folder / "data"


def executed_instructions(truth: Path) -> int:
    """Return how many instructions the only thread of a truth file executed."""
    [(_, instructions, _)] = thread_ends(truth).values()
    return instructions


def caller_names(data: Path) -> list[str]:
    """Return the names of the functions on the stack of the thread that crashed."""
    with rtit.Trace(data) as trace:
        target = GdbTarget(trace, max_instructions=1 << 40, report=lambda _: None)
        found = target.return_addresses(target.tid)
        return [trace.symbols.lookup(target.tid, 1 << 62, each).name for each in found]
