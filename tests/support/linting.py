"""Findings of the linter in a recording."""

from __future__ import annotations

from pathlib import Path

from rtit.linter import lint
from rtit.perfdata.attr import config_value
from rtit.trace import Trace


def lint_findings(recording: Path) -> list[str]:
    """Return the findings in each stream; PSBs must be as frequent as the recording asked for."""
    with Trace(recording) as trace:
        event = trace.data.intel_pt
        assert event is not None
        period = 2048 << config_value(event.attr.config, "psb_period")
        return [
            f"{stream.title}: {finding}"
            for stream in trace.streams
            for finding in lint(stream.chunks(), psb_period=period)
        ]
