"""The result and the running totals of a recording, for every back end."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.perfdata import ExitStatus

OUT_OF_SPACE_ERRORS = "before the disk was full"
"""Where a recording stopped for which too little of the disk was left."""

COMPRESS_AFTER_PSB = False
"""What the units of a recording choose: perf (6.1) compresses IPs after a PSB against the one
before it where it is following the program."""


@dataclass(slots=True)
class RecordingTotals:
    """What has been recorded so far. `clock` counts retired instructions of all threads, traced or
    not; `branches` conditional and indirect branches, returns and far transfers; `pt_bytes` what
    the units wrote, which is more than the file has of a snapshot or at a size.
    """

    clock: int = 0
    threads: int = 0
    pt_bytes: int = 0
    branches: int = 0
    status: int | None = None
    killed: bool = False
    warnings: list[str] = field(default_factory=list)
    edges: int = 0
    """How many edges of the window were passed."""
    traced: int = 0
    """Of `clock`, those that retired while PacketEn was 1; counted where not all are."""
    traced_branches: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """What `record` made.

    `exit_code` is the program's own (128 + N if signal N ended it), 0 for what was attached to;
    `ending` says how it ended: the signal, the faulting instruction and address where one is known;
    `instructions` and `branches` are those that were executed, traced or not: they are all traced
    unless `partial` says that filters, a window, a size or a snapshot left some out.
    `traced_instructions` and `traced_branches` are those that decoding gives back; None where a
    size or a snapshot decided. `pt_bytes` is the PT in the file, padded to multiples of 8 bytes as
    perf.data has it; `stopped` says where the recording stopped before the program did. `counted`
    False: hardware recorded, and instructions, branches and threads were not counted and are 0.
    """

    path: Path
    exit_code: int
    instructions: int
    threads: int
    pt_bytes: int
    warnings: tuple[str, ...]
    branches: int = 0
    stopped: str | None = None
    ending: ExitStatus | None = None
    partial: bool = False
    traced_instructions: int | None = None
    traced_branches: int | None = None
    counted: bool = True


def exit_code_of(status: int) -> int:
    """Return the exit code for a wait status: 128 + N for signal N."""
    return (
        os.waitstatus_to_exitcode(status)
        if not os.WIFSIGNALED(status)
        else 128 + os.WTERMSIG(status)
    )
