"""The names of what a line about an instruction may have."""

from __future__ import annotations

LISTED = ("ip", "tid", "time", "sym", "asm")
"""What one looks at mostly."""
TIMING = ("earliest", "latest", "cycles", "freq", "ipc")
PERF_TIME = "perf_time"
GUEST = ("guest_pid", "guest_tid", "guest_comm")
DETAILED = (
    *("pid", "comm", "cpu", "dso", "insn", "insnlen", "bits", "in_tx"),
    *(*TIMING, PERF_TIME, *GUEST),
)
"""What takes longer; perf's names where it has one."""
