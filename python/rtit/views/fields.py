"""The names of what a line about an instruction may have."""

from __future__ import annotations

LISTED = ("ip", "tid", "time", "sym", "asm")
"""What one looks at mostly."""
TIMING = ("earliest", "latest", "cycles", "freq", "ipc")
PERF_TIME = "perf_time"
DETAILED = ("pid", "comm", "cpu", "dso", "insn", "insnlen", "bits", "in_tx", *TIMING, PERF_TIME)
"""What takes longer; perf's names where it has one."""
