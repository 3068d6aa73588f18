"""The result and the running totals of a recording, for every back end."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.perfdata import ExitStatus

STOPPED_BY_FULL_DISK = "before the disk was full"
"""`Recording.stopped` of a recording that would have filled the disk."""

COMPRESS_AFTER_PSB = False
"""The trace units' choice of whether an IP after a PSB is compressed against the last IP before it.

False, because perf (6.1) decodes such IPs wrongly while it follows the program."""


@dataclass(slots=True)
class RecordingTotals:
    """Counts of a recording so far.

    `clock`: retired instructions of all threads, traced or not; `branches`: conditional and
    indirect branches, returns and far transfers; `pt_bytes`: bytes that the trace units wrote. A
    snapshot, or a file with a maximum size, has fewer.
    """

    clock: int = 0
    threads: int = 0
    pt_bytes: int = 0
    branches: int = 0
    wait_status: int | None = None
    killed: bool = False
    warnings: list[str] = field(default_factory=list)
    window_edges_passed: int = 0
    """How many edges of the recording window were passed."""
    traced_instructions: int = 0
    """Instructions that retired with PacketEn=1; counted only with filters or a window."""
    traced_branches: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """The result of a recording.

    * `exit_code`: the program's exit code (128 + N if signal N ended it); 0 for attached processes.
    * `ending`: how the program ended: the signal, and the faulting instruction and address if they
      are known.
    * `instructions`, `branches`: executed by the program, traced or not.
    * `partial`: filters, a window, a maximum size or a snapshot left a part untraced.
    * `traced_instructions`, `traced_branches`: what decoding returns; None with a maximum size or a
      snapshot, where the count is unknown.
    * `pt_bytes`: PT in the file, padded to multiples of 8 bytes as in perf.data.
    * `stopped`: why the recording stopped before the program ended.
    * `counted`: False if hardware recorded: instructions, branches and threads are then 0.
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


def exit_code_from_status(wait_status: int) -> int:
    """Return the exit code for a wait status: 128 + N for signal N."""
    return (
        os.waitstatus_to_exitcode(wait_status)
        if not os.WIFSIGNALED(wait_status)
        else 128 + os.WTERMSIG(wait_status)
    )
