"""Several event trace reports of one operation: an SMM VM exit is an SMI and a VM exit (33.6)."""

from __future__ import annotations

from rtit.unit import event_trace
from rtit.unit.core import Core
from rtit.unit.event_trace import Report

Reports = tuple[tuple[Report, int | None], ...]
"""What is told, in order, each with the IP as packets carry it, or None if it has none."""


def announce(core: Core, reports: Reports, *, before: bool, after: bool, branch_fup: bool) -> None:
    """Send all of `reports`; see `event_trace.send` for the rest."""
    for report, ip in reports:
        event_trace.send(core, report, before=before, after=after, ip=ip, branch_fup=branch_fup)
