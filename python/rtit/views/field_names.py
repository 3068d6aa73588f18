"""Names of the fields of `rtit instructions` and `rtit branches`, without what printing needs."""

from __future__ import annotations

NATIVE_FIELDS = ("ip", "tid", "time", "sym", "asm")
"""Fields that native code can render."""

TIMING_FIELDS = ("earliest", "latest", "cycles", "freq", "ipc")
GUEST_FIELDS = ("guest_pid", "guest_tid", "guest_comm")

DETAILED_FIELDS = (
    *("pid", "comm", "cpu", "dso", "insn", "insnlen", "bits", "in_tx"),
    *(*TIMING_FIELDS, *GUEST_FIELDS),
)
"""Fields that take the slower path. Names are those of perf where perf has the field."""

BRANCH_FIELDS = {
    "time": ("time",),
    "source": ("source", "name of source"),
    "target": ("target", "name of target"),
    "kind": ("kind",),
}
"""Columns of each field of `rtit branches`. The help text lists the fields."""
