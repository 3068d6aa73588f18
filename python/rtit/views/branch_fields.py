"""The fields of a line of `rtit branches`. The help lists them and must not load the decoder."""

from __future__ import annotations

BRANCH_FIELDS = {
    "time": ("time",),
    "perf_time": ("perf_time",),
    "source": ("source", "name of source"),
    "target": ("target", "name of target"),
    "kind": ("kind",),
}
