"""Sessions of the gdb that is installed, and recordings for them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import rtit
from live import RTIT, ends, to_the_end
from rtit.capture import Request, start
from rtit.gdb.target import Target

RECORDED = re.compile(r"^Recorded (\d+) instructions in \d+ functions \((\d+) gaps\)", re.MULTILINE)
FRAME = re.compile(r"^#\d+ +(?:0x[0-9a-f]+ in )?(\S+) \(", re.MULTILINE)
HIT = re.compile(r"^Breakpoint 1, ", re.MULTILINE)

ProgramBuilder = Callable[[str], Path]


@dataclass(frozen=True)
class Said:
    """What one session of gdb gave."""

    status: int
    out: str
    err: str

    @property
    def recorded(self) -> tuple[int, int]:
        """Instructions and gaps, as `info record` counts them."""
        found = RECORDED.search(self.out)
        assert found is not None, self.out + self.err
        return int(found[1]), int(found[2])

    @property
    def frames(self) -> list[str]:
        """Functions of all backtraces, as they came."""
        return FRAME.findall(self.out)


def debugged(data: Path, *commands: str, options: tuple[str, ...] = (), path: str = "") -> Said:
    """`rtit gdb` with these commands of gdb."""
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
    return Said(ended.returncode, ended.stdout, ended.stderr)


def recorded(folder: Path, *argv: str | Path, backend: str = "auto", **more: object) -> Path:
    words = tuple(map(str, argv))
    request = Request(words, backend=backend, output=folder / "data", **more)  # type: ignore[arg-type]
    to_the_end(start(request))
    return folder / "data"


def of_truth(truth: Path) -> int:
    """How many instructions the one thread executed."""
    [(_, instructions, _)] = ends(truth).values()
    return instructions


def names_of_callers(data: Path) -> list[str]:
    """Of the thread that crashed."""
    with rtit.Trace(data) as trace:
        target = Target(trace, last=1 << 40, tell=lambda _: None)
        found = target.callers(target.tid)
        return [trace.symbols.lookup(target.tid, 1 << 62, each).name for each in found]
