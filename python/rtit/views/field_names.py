"""Names of the fields of `rtit instructions`, `branches` and `blocks`, without code that prints."""

from __future__ import annotations

NATIVE_FIELDS = ("ip", "tid", "time", "sym", "asm")
"""Fields that native code can render."""

TIMING_FIELDS = ("earliest", "latest", "cycles", "freq", "ipc")
GUEST_FIELDS = ("guest_pid", "guest_tid", "guest_comm")

CODE_FIELDS = ("index", "function", "file", "line")
"""Columns that tables have on request."""
STATE_FIELDS = ("cpl", "cr3")
"""Columns that tables of blocks and instructions have on request."""

DETAILED_FIELDS = (
    *("pid", "comm", "cpu", "dso", "insn", "insnlen", "bits", "in_tx"),
    *(*STATE_FIELDS, *CODE_FIELDS, *TIMING_FIELDS, *GUEST_FIELDS),
)
"""Fields that take the slower path. Names are those of perf where perf has the field."""

BRANCH_FIELDS = {
    "time": ("time",),
    "source": ("source", "name of source"),
    "target": ("target", "name of target"),
    "kind": ("kind",),
    **{name: (name,) for name in CODE_FIELDS},
}
"""Columns of each field of `rtit branches`. The help text lists the fields."""

BLOCK_FIELDS = {
    "time": ("time",),
    "start": ("start", "name of start"),
    "instructions": ("instructions",),
    "end": ("end",),
    **{name: (name,) for name in (*STATE_FIELDS, *CODE_FIELDS)},
}
"""Columns of each field of `rtit blocks`."""
